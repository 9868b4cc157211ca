#include "worker_runtime/env/environment.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

#include <fmt/format.h>

#include "base/whole_number.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::worker {

namespace {

namespace var = worker_variable;

/// Any of these shows that a launcher has started this process.
constexpr std::array kLauncherKeys{var::kRank,       var::kWorldSize,  var::kLocalRank,
                                   var::kMasterAddr, var::kMasterPort, var::kGeneration};

/// Reads variables one after the other and keeps the first thing that is wrong.
class Reader {
public:
    Reader(const Lookup& lookup, bool is_ddprun) : lookup_(lookup), is_ddprun_(is_ddprun) {}

    [[nodiscard]] const std::optional<Error>& error() const { return error_; }

    std::string text(const WorkerVariable& variable) {
        const std::string key(variable.key);
        std::optional<std::string> value = lookup_(key);
        if (!value.has_value()) {
            fail(
                fmt::format("{} is not set ({}), but other variables of the launcher are; start "
                            "this program with ddprun or torchrun, or with none of them set",
                            key, variable.meaning));
        }
        return value.value_or("");
    }

    /// Like text(), but only ddprun must set it.
    std::string own_text(const WorkerVariable& variable) {
        return is_ddprun_ ? text(variable) : lookup_(std::string(variable.key)).value_or("");
    }

    template <typename Number>
    Number number(const WorkerVariable& variable, Number min, Number max) {
        return parse(variable, text(variable), min, max);
    }

    template <typename Number>
    Number own_number(const WorkerVariable& variable, Number min, Number max, Number otherwise) {
        const std::optional<std::string> value = lookup_(std::string(variable.key));
        return !value && !is_ddprun_ ? otherwise : number(variable, min, max);
    }

    /// As number(), but an older ddprun may leave the variable out, too.
    template <typename Number>
    Number number_if_told(const WorkerVariable& variable, Number min, Number max,
                          Number otherwise) {
        const std::optional<std::string> value = lookup_(std::string(variable.key));
        return value ? parse(variable, *value, min, max) : otherwise;
    }

    /// As number_if_told(), but the variable may also be empty.
    std::optional<int> number_or_none(const WorkerVariable& variable, int min, int max) {
        const std::optional<std::string> value = lookup_(std::string(variable.key));
        if (!value || value->empty()) {
            return std::nullopt;
        }
        return parse(variable, *value, min, max);
    }

    void require(bool is_right, const std::string& what) {
        if (!is_right) {
            fail(what);
        }
    }

private:
    template <typename Number>
    Number parse(const WorkerVariable& variable, const std::string& value, Number min, Number max) {
        const std::optional<Number> parsed = whole_number<Number>(value);
        if (!parsed || *parsed < min || *parsed > max) {
            fail(fmt::format("{}={} is no number from {} to {} ({})", variable.key, value, min, max,
                             variable.meaning));
            return min;
        }
        return *parsed;
    }

    void fail(std::string what) {
        if (!error_.has_value()) {
            error_ = Error{ErrorCode::InvalidArgument, "worker environment: " + std::move(what)};
        }
    }

    const Lookup& lookup_;
    bool is_ddprun_;
    std::optional<Error> error_;
};

constexpr int kWorldMax = 1 << 24;

void check_places(Reader& read, const WorkerEnvironment& place) {
    const auto fits = [&read](const char* key, int value, const char* of, int count) {
        read.require(value < count, fmt::format("{}={} does not fit {}={}; it must be below", key,
                                                value, of, count));
    };
    fits("RANK", place.rank.value(), "WORLD_SIZE", place.world_size);
    fits("LOCAL_RANK", place.local_rank.value(), "LOCAL_WORLD_SIZE", place.local_world_size);
    fits("DDPRUN_SLOT", place.slot.value(), "LOCAL_WORLD_SIZE", place.local_world_size);
    read.require(place.local_rank.value() == 0 || place.local_rank == place.slot,
                 fmt::format("LOCAL_RANK={} is neither 0 nor DDPRUN_SLOT={}",
                             place.local_rank.value(), place.slot.value()));
    fits("GROUP_RANK", place.group_rank, "GROUP_WORLD_SIZE", place.group_world_size);
    if (place.memory_partner) {
        fits("DDPRUN_MEMORY_PARTNER", *place.memory_partner, "GROUP_WORLD_SIZE",
             place.group_world_size);
        read.require(*place.memory_partner != place.group_rank,
                     fmt::format("DDPRUN_MEMORY_PARTNER={} is GROUP_RANK itself; a node's second "
                                 "copy is on another one",
                                 *place.memory_partner));
    }
    read.require(place.target_world_size >= place.world_size,
                 fmt::format("DDPRUN_TARGET_WORLD_SIZE={} is less than WORLD_SIZE={}",
                             place.target_world_size, place.world_size));
    read.require(place.local_world_size <= place.world_size,
                 fmt::format("LOCAL_WORLD_SIZE={} is more than WORLD_SIZE={}",
                             place.local_world_size, place.world_size));
}

}  // namespace

Result<WorkerEnvironment> read_environment(const Lookup& lookup) {
    const bool is_launched = std::any_of(
        kLauncherKeys.begin(), kLauncherKeys.end(),
        [&lookup](const auto& variable) { return lookup(std::string(variable.key)).has_value(); });
    WorkerEnvironment place;
    if (!is_launched) {
        return place;
    }
    const bool is_ddprun = lookup(std::string(var::kGeneration.key)).has_value();
    Reader read(lookup, is_ddprun);
    place.rank = Rank(read.number(var::kRank, 0, kWorldMax));
    place.world_size = read.number(var::kWorldSize, 1, kWorldMax);
    place.local_rank = LocalRank(read.number(var::kLocalRank, 0, kWorldMax));
    place.local_world_size = read.number(var::kLocalWorldSize, 1, kWorldMax);
    place.group_rank = read.own_number(var::kGroupRank, 0, kWorldMax, 0);
    place.group_world_size = read.own_number(var::kGroupWorldSize, 1, kWorldMax, 1);
    place.restart_count = read.own_number(var::kRestartCount, 0, kWorldMax, 0);
    place.max_restarts = read.own_number(var::kMaxRestarts, 0, kWorldMax, 0);
    StoreAddress store;
    store.host = read.text(var::kMasterAddr);
    store.port = read.number<std::uint16_t>(var::kMasterPort, 1, 65535);
    read.require(!store.host.empty(), "MASTER_ADDR is empty (host of the generation's store)");
    place.store = std::move(store);
    place.serves_store =
        place.rank == Rank(0) && lookup(std::string(var::kUseAgentStore.key)) == "False";
    place.generation = Generation(read.own_number<std::uint64_t>(
        var::kGeneration, 1, UINT64_MAX, static_cast<std::uint64_t>(place.restart_count) + 1));
    place.job = JobId(read.own_text(var::kRunId));
    place.node = NodeId(read.own_text(var::kNodeId));
    place.local_address = read.own_text(var::kLocalAddress);
    place.start_reason = read.own_text(var::kStartReason);
    place.target_world_size =
        read.number_if_told(var::kTargetWorldSize, 1, kWorldMax, place.world_size);
    place.memory_partner = read.number_or_none(var::kMemoryPartner, 0, kWorldMax);
    place.slot = LocalRank(read.own_number(var::kSlot, 0, kWorldMax, place.local_rank.value()));
    place.page = read.own_text(var::kPage);
    check_places(read, place);
    if (read.error().has_value()) {
        return *read.error();
    }
    return place;
}

Result<WorkerEnvironment> read_environment() {
    return read_environment([](const std::string& key) -> std::optional<std::string> {
        const char* const value = std::getenv(key.c_str());
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    });
}

}  // namespace ddprun::worker
