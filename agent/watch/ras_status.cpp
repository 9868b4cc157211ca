#include "agent/watch/ras_status.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/wire/json_text.hpp"

namespace ddprun::agent {

namespace {

std::optional<RasRank> rank_from(const nlohmann::json& told) {
    if (!told.is_object() || !told.contains("rank") || !told["rank"].is_number_unsigned() ||
        !told.contains("collective_counts") || !told["collective_counts"].is_object()) {
        return std::nullopt;
    }
    RasRank rank{.rank = told["rank"].get<int>(), .host = rdzv::text_in(told, "host")};
    for (const auto& [name, count] : told["collective_counts"].items()) {
        if (count.is_number_unsigned()) {
            rank.counts[name] = count.get<std::uint64_t>();
        }
    }
    return rank;
}

/// The rank that has launched a collective least, how often, and the most that others have.
struct Difference {
    std::string collective;
    const RasRank* behind = nullptr;
    std::uint64_t least = 0;
    std::uint64_t most = 0;
};

std::optional<Difference> difference_of(const std::vector<RasRank>& ranks) {
    std::map<std::string, Difference> of;
    for (const RasRank& rank : ranks) {
        for (const auto& [name, count] : rank.counts) {
            Difference& found = of[name];
            if (found.behind == nullptr || count < found.least) {
                found.behind = &rank;
                found.least = count;
            }
            found.collective = name;
            found.most = std::max(found.most, count);
        }
    }
    for (const auto& [name, found] : of) {
        if (found.least < found.most) {
            return found;
        }
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::vector<RasCommunicator>> ras_status_from(std::string_view answer) {
    answer.remove_prefix(std::min(answer.size(), answer.find('{')));
    const nlohmann::json told = nlohmann::json::parse(answer, nullptr, false);
    if (!told.is_object() || !told.contains("communicators") || !told["communicators"].is_array()) {
        return std::nullopt;
    }
    std::vector<RasCommunicator> all;
    for (const nlohmann::json& one : told["communicators"]) {
        if (!one.is_object() || !one.contains("hash") || !one.contains("ranks") ||
            !one["ranks"].is_array()) {
            return std::nullopt;
        }
        RasCommunicator communicator{.id = one["hash"].dump(), .size = 0};
        if (const auto second = one.find("secondary_hash"); second != one.end()) {
            communicator.id += second->dump();
        }
        for (const nlohmann::json& rank : one["ranks"]) {
            std::optional<RasRank> read = rank_from(rank);
            if (!read) {
                return std::nullopt;
            }
            communicator.ranks.push_back(*std::move(read));
        }
        const auto size = one.find("size");
        communicator.size = size != one.end() && size->is_number_unsigned()
                                ? size->get<int>()
                                : static_cast<int>(communicator.ranks.size());
        all.push_back(std::move(communicator));
    }
    return all;
}

std::optional<HangSeen> RasWatch::look(Instant now, Milliseconds after, int world_size,
                                       const std::vector<RasCommunicator>& status) {
    std::map<std::string, Still> still;
    std::optional<HangSeen> seen;
    for (const RasCommunicator& one : status) {
        const auto difference = difference_of(one.ranks);
        if (!difference) {
            continue;
        }
        const auto before = still_.find(one.id);
        const bool stands = before != still_.end() && before->second.ranks == one.ranks;
        const Instant since = stands ? before->second.since : now;
        still[one.id] = {.ranks = one.ranks, .since = since};
        if (seen || since + after > now) {
            continue;
        }
        const RasRank& behind = *difference->behind;
        const bool is_world = one.size == world_size;
        seen = HangSeen{
            .rank = is_world ? std::optional(Rank(behind.rank)) : std::nullopt,
            .host = behind.host,
            .collective = difference->collective,
            .text = fmt::format(
                "an NCCL communicator of {} ranks stands still for {} s: {} {} on {} has launched "
                "{} {}, others {}",
                one.size, std::chrono::duration_cast<std::chrono::seconds>(now - since).count(),
                is_world ? "rank" : "its rank", behind.rank, behind.host, difference->least,
                difference->collective, difference->most)};
    }
    still_ = std::move(still);
    return seen;
}

}  // namespace ddprun::agent
