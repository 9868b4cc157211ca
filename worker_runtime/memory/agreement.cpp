#include "worker_runtime/memory/agreement.hpp"

#include <cstddef>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddprun::worker {

namespace {

/// The inverse of text_of().
MemoryRank rank_of(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text);
    return {.has_memory = json.at(0).get<bool>(),
            .endpoint = json.at(1).get<std::string>(),
            .group_rank = json.at(2).get<int>(),
            .why = json.at(3).get<std::string>()};
}

}  // namespace

std::string text_of(const MemoryRank& rank) {
    return nlohmann::json({rank.has_memory, rank.endpoint, rank.group_rank, rank.why})
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

MemoryAgreement agreement_of(const std::vector<std::string>& texts,
                             const std::optional<int>& partner) {
    MemoryAgreement agreement;
    std::size_t with_memory = 0;
    std::string without;  // ddprun has named no socket there
    std::string failed;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
        const MemoryRank one = rank_of(texts[rank]);
        with_memory += one.has_memory ? 1 : 0;
        if (partner == one.group_rank) {
            agreement.endpoint = one.endpoint;
        }
        std::string& why = one.why == kNoMemory ? without : failed;
        if (!one.has_memory && why.empty()) {
            why = fmt::format("rank {}: {}", rank, one.why);
        }
    }
    agreement.is_kept = with_memory == texts.size();
    if (!failed.empty()) {
        agreement.line =
            fmt::format("no checkpoint is kept in memory, saves go to the disk only: {}", failed);
    } else if (with_memory > 0 && !agreement.is_kept) {
        agreement.line = fmt::format(
            "no checkpoint is kept in memory: {}; give every node --memory-checkpoints", without);
    }
    return agreement;
}

}  // namespace ddprun::worker
