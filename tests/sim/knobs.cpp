#include "tests/sim/knobs.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace ddprun::sim {

namespace {

template <typename T>
std::int64_t number_of(const T& value) {
    if constexpr (std::is_same_v<T, Milliseconds>) {
        return value.count();
    } else {
        return static_cast<std::int64_t>(value);
    }
}

/// A knob for SimOptions::*member, or for one of its settings.
template <auto member>
constexpr Knob knob(std::string_view name, std::int64_t simplest) {
    return Knob{.name = name,
                .get = [](const SimOptions& options) { return number_of(options.*member); },
                .set =
                    [](SimOptions& options, std::int64_t value) {
                        using T = std::remove_cvref_t<decltype(options.*member)>;
                        options.*member = static_cast<T>(value);
                    },
                .simplest = simplest};
}

template <auto member>
constexpr Knob setting(std::string_view name, std::int64_t simplest) {
    return Knob{
        .name = name,
        .get = [](const SimOptions& options) { return number_of(options.settings.*member); },
        .set =
            [](SimOptions& options, std::int64_t value) {
                using T = std::remove_cvref_t<decltype(options.settings.*member)>;
                options.settings.*member = static_cast<T>(value);
            },
        .simplest = simplest};
}

/// The sizes of at most 62 nodes, each a bit.
Knob sizes_knob() {
    constexpr int kBits = 62;
    return Knob{.name = "node-sizes-bits",
                .get =
                    [](const SimOptions& options) {
                        std::int64_t bits = 0;
                        for (const int size : options.settings.node_sizes) {
                            bits |= size <= kBits ? std::int64_t{1} << (size - 1) : 0;
                        }
                        return bits;
                    },
                .set =
                    [](SimOptions& options, std::int64_t value) {
                        options.settings.node_sizes.clear();
                        for (int size = 1; size <= kBits; ++size) {
                            if ((value >> (size - 1) & 1) == 1) {
                                options.settings.node_sizes.push_back(size);
                            }
                        }
                    },
                .simplest = 0};
}

std::optional<std::int64_t> parse_number(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault != std::errc() || end != text.data() + text.size()) {
        return std::nullopt;
    }
    return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(separator), text.size());
        parts.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return parts;
}

}  // namespace

const std::vector<Knob>& knobs() {
    using S = rdzv::JobSettings;
    static const std::vector<Knob> all = {
        knob<&SimOptions::nodes>("nodes", 2),
        knob<&SimOptions::slots_max>("slots", 1),
        knob<&SimOptions::daemons>("daemons", 1),
        knob<&SimOptions::slow_nodes>("slow-nodes", 0),
        knob<&SimOptions::odd_nodes>("odd-nodes", 0),
        knob<&SimOptions::unlike_nodes>("unlike-nodes", 0),
        setting<&S::same>("same", 0),
        knob<&SimOptions::racks>("racks", 0),
        setting<&S::memory_replicas>("memory-replicas", 0),
        knob<&SimOptions::bandwidth_kib>("bandwidth-kib", 0),
        setting<&S::max_nodes>("max-nodes", 1),
        setting<&S::min_nodes>("min-nodes", 1),
        setting<&S::node_unit>("node-unit", 1),
        sizes_knob(),
        setting<&S::max_restarts>("max-restarts", 0),
        setting<&S::max_node_losses>("max-node-losses", -1),
        setting<&S::max_restarts_at_step>("max-restarts-at-step", 0),
        setting<&S::grow>("grow", 0),
        setting<&S::patience>("patience-ms", 0),
        setting<&S::join_timeout>("join-timeout-ms", 10000),
        setting<&S::grow_delay>("grow-delay-ms", 0),
        setting<&S::failure_grace>("failure-grace-ms", 500),
        setting<&S::shutdown_timeout>("shutdown-timeout-ms", 1000),
        knob<&SimOptions::rendezvous_lost_timeout>("rendezvous-lost-timeout-ms", 20000),
        knob<&SimOptions::connect_timeout>("connect-timeout-ms", 20000),
        knob<&SimOptions::delay_max>("delay-ms", 0),
        knob<&SimOptions::local_delay_max>("local-delay-ms", 0),
        knob<&SimOptions::journal_delay_max>("journal-delay-ms", 0),
        knob<&SimOptions::start_spread>("start-spread-ms", 0),
        knob<&SimOptions::work_min>("work-min-ms", 20000),
        knob<&SimOptions::work_max>("work-max-ms", 20000),
        knob<&SimOptions::clock_drift_percent>("clock-drift-percent", 0),
        knob<&SimOptions::timer_grain>("timer-grain-ms", 0),
        knob<&SimOptions::sigterm_ignored_percent>("sigterm-ignored-percent", 0),
        knob<&SimOptions::sigterm_exits_zero_percent>("sigterm-exits-zero-percent", 0),
        knob<&SimOptions::runtime_percent>("runtime-percent", 0),
        knob<&SimOptions::returns_percent>("returns-percent", 0),
        knob<&SimOptions::unkillable_percent>("unkillable-percent", 0),
        knob<&SimOptions::collateral_percent>("collateral-percent", 0),
        knob<&SimOptions::progress_percent>("progress-percent", 0),
        knob<&SimOptions::slow_death_percent>("slow-death-percent", 0),
        knob<&SimOptions::has_preflight>("preflight", 0),
        knob<&SimOptions::unfit_percent>("unfit-percent", 0),
        knob<&SimOptions::prepares>("prepares", 0),
        knob<&SimOptions::is_warm>("warm", 0),
        setting<&S::hang_timeout>("hang-timeout-ms", 0),
        knob<&SimOptions::hang_percent>("hang-percent", 0),
        knob<&SimOptions::quiet_percent>("quiet-percent", 0),
        knob<&SimOptions::gpu_percent>("gpu-percent", 0),
        knob<&SimOptions::order_every>("order-every-ms", 0),
        knob<&SimOptions::etcd_full_at>("etcd-full-at-ms", 0),
        knob<&SimOptions::etcd_full_for>("etcd-full-for-ms", 0),
        knob<&SimOptions::etcd_grants_when_full>("etcd-grants-when-full", 0),
        knob<&SimOptions::faults_for>("faults-for-ms", 0),
    };
    return all;
}

Result<void> apply_changes(SimOptions& options, const std::string& changes) {
    for (const std::string_view part : split(changes, ',')) {
        const std::size_t sign = part.find('=');
        const std::string_view name = part.substr(0, sign);
        const auto found = std::find_if(knobs().begin(), knobs().end(),
                                        [&](const Knob& knob) { return knob.name == name; });
        const std::optional<std::int64_t> value =
            sign == std::string_view::npos ? std::nullopt : parse_number(part.substr(sign + 1));
        if (found == knobs().end() || !value.has_value()) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("'{}' sets nothing; it must be NAME=NUMBER with a name that "
                                     "--list-knobs prints",
                                     part)};
        }
        found->set(options, *value);
    }
    make_consistent(options);
    return {};
}

std::string changes_of(const SimOptions& options, const SimOptions& drawn) {
    std::string changes;
    for (const Knob& knob : knobs()) {
        if (knob.get(options) != knob.get(drawn)) {
            changes +=
                fmt::format("{}{}={}", changes.empty() ? "" : ",", knob.name, knob.get(options));
        }
    }
    return changes;
}

Result<std::vector<std::size_t>> parse_indexes(const std::string& text) {
    std::vector<std::size_t> indexes;
    for (const std::string_view part : split(text, ',')) {
        const std::size_t dash = part.find('-');
        const std::optional<std::int64_t> first = parse_number(part.substr(0, dash));
        const std::optional<std::int64_t> last =
            dash == std::string_view::npos ? first : parse_number(part.substr(dash + 1));
        constexpr std::int64_t kMost = 1000000;
        if (!first || !last || *first < 0 || *last < *first || *last > kMost) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("'{}' names no faults; they are given as 2,5-9", part)};
        }
        for (std::int64_t index = *first; index <= *last; ++index) {
            indexes.push_back(static_cast<std::size_t>(index));
        }
    }
    return indexes;
}

}  // namespace ddprun::sim
