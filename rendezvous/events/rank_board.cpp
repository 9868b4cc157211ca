#include "rendezvous/events/rank_board.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::rdzv {

namespace {

constexpr double kNanosecondsPerSecond = 1e9;
constexpr double kPermille = 1000;

/// Names are anybody's.
std::string quoted(const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <typename Number>
void add(std::string& text, std::string_view name, const std::optional<Number>& value) {
    if (value) {
        fmt::format_to(std::back_inserter(text), ",\"{}\":{}", name, *value);
    }
}

void add_share(std::string& text, std::string_view name, double share) {
    fmt::format_to(std::back_inserter(text), ",\"{}\":{:.3f}", name, share);
}

std::string memory_fields(const std::optional<HostMemory>& memory) {
    std::string text;
    if (memory) {
        add(text, "memory_bytes", std::optional(memory->bytes));
        add(text, "memory_limit_bytes", std::optional(memory->limit_bytes));
        if (memory->pressure_permille) {
            add_share(text, "memory_pressure", *memory->pressure_permille / kPermille);
        }
    }
    return text;
}

void add_rank(std::string& text, const std::string& quoted_node, int base_rank,
              const RankProgress& rank) {
    fmt::format_to(std::back_inserter(text),
                   "{}{{\"rank\":{},\"node\":{},\"local_rank\":{},\"phase\":\"{}\"",
                   text.empty() ? "" : ",", base_rank + rank.local_rank.value(), quoted_node,
                   rank.local_rank.value(), word_of(rank.phase, kRankPhaseNames));
    add(text, "step", rank.step);
    add(text, "step_age_ms", rank.step_age_ms);
    if (rank.step_ns) {
        const auto step_ns = static_cast<double>(*rank.step_ns);
        fmt::format_to(std::back_inserter(text), ",\"steps_per_s\":{:.4g}",
                       kNanosecondsPerSecond / step_ns);
        if (rank.own_ns) {
            add_share(text, "own_share",
                      std::min(static_cast<double>(*rank.own_ns) / step_ns, 1.0));
        }
    }
    add(text, "memory_bytes", rank.memory_bytes);
    add(text, "memory_peak_bytes", rank.memory_peak_bytes);
    if (rank.gpu_permille) {
        add_share(text, "gpu_use", *rank.gpu_permille / kPermille);
    }
    add(text, "gpu_memory_bytes", rank.gpu_memory_bytes);
    add(text, "gpu_memory_total_bytes", rank.gpu_memory_total_bytes);
    if (rank.gpu_milliwatts) {
        add(text, "gpu_power_w", std::optional(*rank.gpu_milliwatts / 1000));
    }
    text += '}';
}

}  // namespace

void RankBoard::take(Instant now, const NodeOfRanks& node, const Progress& progress) {
    if (progress.generation < generation_) {
        return;
    }
    if (progress.generation > generation_) {
        clear();
        generation_ = progress.generation;
    }
    Told told{
        .where = node, .at = now, .text = {}, .ranks = progress.ranks, .times = {}, .pace = {}};
    const std::string quoted_node = quoted(node.node.value());
    for (const RankProgress& rank : progress.ranks) {
        add_rank(told.text, quoted_node, node.base_rank, rank);
        if (rank.step_ns && rank.own_ns) {
            told.times.push_back({.rank = Rank(node.base_rank + rank.local_rank.value()),
                                  .whole = static_cast<double>(*rank.step_ns),
                                  .own = static_cast<double>(*rank.own_ns)});
        }
        if (rank.step) {
            told.pace.step = std::min(told.pace.step.value_or(*rank.step), *rank.step);
        }
        told.pace.step_ns = std::max(told.pace.step_ns, rank.step_ns);
    }
    told.pace.memory = progress.memory;
    base_rank_of_[node.node] = node.base_rank;
    nodes_[node.base_rank] = std::move(told);
}

void RankBoard::judge(Instant since) {
    std::vector<StepTime> times;
    for (auto told = nodes_.begin(); told != nodes_.end();) {
        if (told->second.at < since) {
            base_rank_of_.erase(told->second.where.node);
            told = nodes_.erase(told);
            continue;
        }
        times.insert(times.end(), told->second.times.begin(), told->second.times.end());
        ++told;
    }
    const std::optional<Slowest> slowest = find_slowest(times);
    slowest_.reset();
    if (slowest) {
        const auto next = nodes_.upper_bound(slowest->rank.value());
        slowest_ = Named{.slowest = *slowest, .where = std::prev(next)->second.where};
    }
}

std::size_t RankBoard::rank_count() const {
    std::size_t count = 0;
    for (const auto& [base_rank, told] : nodes_) {
        count += told.ranks.size();
    }
    return count;
}

std::string RankBoard::ranks_json(std::size_t ranks_max) const {
    std::string list;
    std::size_t count = 0;
    for (const auto& [base_rank, told] : nodes_) {
        count += told.ranks.size();
        if (count > ranks_max) {
            break;
        }
        if (!told.text.empty()) {
            list += list.empty() ? "" : ",";
            list += told.text;
        }
    }
    return "[" + list + "]";
}

std::string RankBoard::slowest_json() const {
    if (!slowest_) {
        return {};
    }
    return fmt::format("{{\"rank\":{},\"node\":{},\"host\":{},\"cost_share\":{:.3f}}}",
                       slowest_->slowest.rank.value(), quoted(slowest_->where.node.value()),
                       quoted(slowest_->where.hostname), slowest_->slowest.cost_share);
}

std::string RankBoard::line(const NodeId& node) const {
    const auto found = base_rank_of_.find(node);
    if (found == base_rank_of_.end()) {
        return {};
    }
    const std::string slowest = slowest_json();
    const Told& told = nodes_.at(found->second);
    return fmt::format("{{\"event\":\"progress\",\"node\":{},\"ranks\":[{}]{}{}{}}}",
                       quoted(node.value()), told.text, memory_fields(told.pace.memory),
                       slowest.empty() ? "" : ",\"slowest\":", slowest);
}

void RankBoard::visit(const Visitor& visitor) const {
    for (const auto& [base_rank, told] : nodes_) {
        for (const RankProgress& rank : told.ranks) {
            visitor(told.where, Rank(base_rank + rank.local_rank.value()), rank);
        }
    }
}

RankBoard::NodePace RankBoard::pace(const NodeId& node) const {
    const auto found = base_rank_of_.find(node);
    return found == base_rank_of_.end() ? NodePace{} : nodes_.at(found->second).pace;
}

}  // namespace ddprun::rdzv
