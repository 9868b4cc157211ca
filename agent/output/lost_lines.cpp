#include "agent/output/lost_lines.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "agent/output/log_errors.hpp"

namespace ddprun::agent {

namespace {

/// "1,204"
std::string with_commas(std::uint64_t number) {
    constexpr std::size_t kGroup = 3;
    std::string digits = std::to_string(number);
    for (std::size_t at = digits.size(); at > kGroup;) {
        at -= kGroup;
        digits.insert(at, 1, ',');
    }
    return digits;
}

}  // namespace

void LostLines::add(Rank rank, std::string_view lost, const Error& error) {
    const std::scoped_lock lock(mutex_);
    if (!lost_.contains(rank.value()) && lost_.size() >= limits_.lost_ranks_max) {
        return;
    }
    LostLog& log = lost_[rank.value()];
    log.rank = rank.value();
    log.lines += static_cast<std::uint64_t>(std::count(lost.begin(), lost.end(), '\n'));
    log.why = reason_of(error.what);
}

std::vector<LostLog> LostLines::told() const {
    const std::scoped_lock lock(mutex_);
    std::vector<LostLog> told;
    for (const auto& [rank, lost] : lost_) {
        told.push_back(lost);
        told.back().lines = std::max<std::uint64_t>(lost.lines, 1);
    }
    return told;
}

std::string lost_text(const LostLog& lost) {
    return fmt::format("rank {}: {} line{} of its log {} lost: {}", lost.rank,
                       with_commas(lost.lines), lost.lines == 1 ? "" : "s",
                       lost.lines == 1 ? "was" : "were", lost.why);
}

std::string lost_text(const std::vector<LostLog>& lost) {
    if (lost.empty()) {
        return {};
    }
    const auto most = std::max_element(
        lost.begin(), lost.end(),
        [](const LostLog& left, const LostLog& right) { return left.lines < right.lines; });
    const std::size_t others = lost.size() - 1;
    return others == 0 ? lost_text(*most)
                       : fmt::format("{}; {} other rank{} lost some, too", lost_text(*most), others,
                                     others == 1 ? "" : "s");
}

}  // namespace ddprun::agent
