#include "tests/sim/shrink.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/number_ranges.hpp"
#include "tests/sim/fault_plan.hpp"
#include "tests/sim/knobs.hpp"

namespace ddprun::sim {

namespace {

constexpr std::uint64_t kRunsMax = 5000;

std::string property_of(const SimResult& result) {
    const std::string& violation = result.violation.value_or("");
    return violation.substr(0, violation.find(':'));
}

class Shrinker {
public:
    Shrinker(SimOptions options, std::string property)
        : best_(std::move(options)), property_(std::move(property)) {}

    /// Takes `candidate` if it violates the property, too.
    bool is_taken(SimOptions candidate) {
        if (runs_ >= kRunsMax) {
            return false;
        }
        ++runs_;
        make_consistent(candidate);
        const SimResult result = Simulation(candidate, false).run();
        if (property_of(result) != property_) {
            return false;
        }
        best_ = std::move(candidate);
        return true;
    }

    /// Leaves out faults: large pieces first, then single ones.
    bool are_faults_dropped() {
        bool has_changed = false;
        for (std::size_t piece = best_.kept_faults->size(); piece >= 1; piece /= 2) {
            for (std::size_t from = 0; from < best_.kept_faults->size();) {
                SimOptions candidate = best_;
                std::vector<std::size_t>& kept = *candidate.kept_faults;
                const auto first = kept.begin() + static_cast<std::ptrdiff_t>(from);
                const auto last =
                    kept.begin() + static_cast<std::ptrdiff_t>(std::min(from + piece, kept.size()));
                kept.erase(first, last);
                const bool is_less = is_taken(std::move(candidate));
                has_changed |= is_less;
                from += is_less ? 0 : piece;
            }
        }
        return has_changed;
    }

    /// The simplest value, or one on the way to it.
    bool is_turned(const Knob& knob) {
        bool has_changed = false;
        std::int64_t low = knob.simplest;
        while (low != knob.get(best_)) {
            SimOptions candidate = best_;
            knob.set(candidate, low);
            make_consistent(candidate);
            if (knob.get(candidate) == knob.get(best_)) {
                return has_changed;
            }
            if (is_taken(std::move(candidate))) {
                return true;
            }
            const std::int64_t middle = low + (knob.get(best_) - low) / 2;
            if (middle == low) {
                return has_changed;
            }
            low = middle;
        }
        return has_changed;
    }

    [[nodiscard]] const SimOptions& best() const { return best_; }
    [[nodiscard]] std::uint64_t runs() const { return runs_; }

private:
    SimOptions best_;
    std::string property_;
    std::uint64_t runs_ = 0;
};

/// Later ones are never reached: the plan may end with the last that was kept.
void cut_fault_time(Shrinker& shrinker) {
    const std::vector<PlannedFault> plan = plan_faults(shrinker.best());
    SimOptions candidate = shrinker.best();
    const Instant last = plan.empty() ? Instant{} : plan.back().at;
    candidate.faults_for =
        std::chrono::duration_cast<Milliseconds>(last.time_since_epoch()) + Milliseconds(1);
    shrinker.is_taken(std::move(candidate));
}

}  // namespace

std::optional<Shrunk> shrink(const SimOptions& options) {
    SimOptions start = options;
    const std::string property = property_of(Simulation(start, false).run());
    if (property.empty()) {
        return std::nullopt;
    }
    if (!start.kept_faults.has_value()) {
        start.kept_faults.emplace();
        for (const PlannedFault& fault : plan_faults(options)) {
            start.kept_faults->push_back(fault.index);
        }
    }
    Shrinker shrinker(std::move(start), property);
    for (bool has_changed = true; has_changed;) {
        has_changed = shrinker.are_faults_dropped();
        for (const Knob& knob : knobs()) {
            if (knob.name != "faults-for-ms") {
                has_changed |= shrinker.is_turned(knob);
            }
        }
    }
    cut_fault_time(shrinker);
    return Shrunk{.options = shrinker.best(),
                  .result = Simulation(shrinker.best(), true).run(),
                  .runs = shrinker.runs()};
}

std::string command_line(const SimOptions& options, const std::string& bug) {
    std::string line = fmt::format("ddprun-sim --seed {}", options.seed);
    // The plan itself never depends on what was changed, but for its length.
    const std::string changes = changes_of(options, draw_options(options.seed, options.range));
    if (options.range.most > 0) {
        line += fmt::format(" --nodes-between {}:{}", options.range.least, options.range.most);
    }
    if (!changes.empty()) {
        line += " --set " + changes;
    }
    if (options.kept_faults.has_value()) {
        line += fmt::format(" --keep '{}'", number_ranges(*options.kept_faults));
    }
    return bug.empty() ? line : line + " --bug " + bug;
}

}  // namespace ddprun::sim
