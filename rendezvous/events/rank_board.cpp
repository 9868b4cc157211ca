#include "rendezvous/events/rank_board.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::rdzv {

namespace {

constexpr double kNanosecondsPerSecond = 1e9;
constexpr double kPermille = 1000;

}  // namespace

std::optional<double> samples_per_second(const RankProgress& rank) {
    if (!rank.samples || rank.steps.value_or(0) == 0 || rank.step_ns.value_or(0) == 0) {
        return std::nullopt;
    }
    return static_cast<double>(*rank.samples) / static_cast<double>(*rank.steps) *
           kNanosecondsPerSecond / static_cast<double>(*rank.step_ns);
}

namespace {

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
    if (rank.activity != Activity::Unknown) {
        fmt::format_to(std::back_inserter(text), ",\"activity\":\"{}\"",
                       word_of(rank.activity, kActivityNames));
    }
    add(text, "output_age_ms", rank.output_age_ms);
    add(text, "step", rank.step);
    add(text, "step_age_ms", rank.step_age_ms);
    if (is_stalled(rank, WatchLimits())) {
        text += ",\"steps_per_s\":0";
    } else if (rank.step_ns) {
        const auto step_ns = static_cast<double>(*rank.step_ns);
        fmt::format_to(std::back_inserter(text), ",\"steps_per_s\":{:.4g}",
                       kNanosecondsPerSecond / step_ns);
        if (rank.own_ns) {
            add_share(text, "own_share",
                      std::min(static_cast<double>(*rank.own_ns) / step_ns, 1.0));
        }
    }
    if (const std::optional<double> samples = samples_per_second(rank)) {
        fmt::format_to(std::back_inserter(text), ",\"samples_per_s\":{:.4g}", *samples);
    }
    add(text, "log_bytes", rank.log_bytes);
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

std::string json_of(const std::optional<NamedSlowest>& named) {
    if (!named) {
        return {};
    }
    return fmt::format("{{\"rank\":{},\"node\":{},\"host\":{},\"cost_share\":{:.3f}}}",
                       named->slowest.rank.value(), quoted(named->where.node.value()),
                       quoted(named->where.hostname), named->slowest.cost_share);
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
    NodeTold told{.where = node,
                  .at = now,
                  .text = {},
                  .ranks = progress.ranks,
                  .times = {},
                  .step = {},
                  .step_ns = {},
                  .memory = progress.memory,
                  .store = progress.store,
                  .log_lost = progress.log_lost};
    const std::string quoted_node = quoted(node.node.value());
    for (const RankProgress& rank : progress.ranks) {
        look_at(Rank(node.base_rank + rank.local_rank.value()), rank);
        add_rank(told.text, quoted_node, node.base_rank, rank);
        if (rank.step_ns && rank.own_ns) {
            told.times.push_back({.rank = Rank(node.base_rank + rank.local_rank.value()),
                                  .whole = static_cast<double>(*rank.step_ns),
                                  .own = static_cast<double>(*rank.own_ns)});
        }
        if (rank.step) {
            told.step = std::min(told.step.value_or(*rank.step), *rank.step);
        }
        told.step_ns = std::max(told.step_ns, rank.step_ns);
    }
    base_rank_of_[node.node] = node.base_rank;
    nodes_[node.base_rank] = std::make_shared<const NodeTold>(std::move(told));
}

/// Ranks that use a GPU may wait by computing: their activity says nothing about waiting.
void RankBoard::look_at(Rank rank, const RankProgress& told) {
    const bool tells = told.activity != Activity::Unknown && !told.own_ns && !told.gpu_permille &&
                       told.phase != RankPhase::Finished && told.phase != RankPhase::Failed;
    if (tells) {
        WaitLooks& looks = looks_.try_emplace(rank, WaitLooks{.rank = rank}).first->second;
        looks.add(told.activity == Activity::Waits || told.activity == Activity::WaitsForStore);
    } else {
        looks_.erase(rank);
    }
}

/// By the ranks' steps, else by what they did.
std::optional<Slowest> RankBoard::find_slowest_now() const {
    std::vector<StepTime> times;
    std::vector<WaitLooks> looks;
    std::size_t ranks = 0;
    for (const auto& [base_rank, told] : nodes_) {
        times.insert(times.end(), told->times.begin(), told->times.end());
        ranks += told->ranks.size();
    }
    for (const auto& [rank, seen] : looks_) {
        looks.push_back(seen);
    }
    return looks.size() == ranks ? find_slowest_by_looks(looks) : find_slowest(times);
}

void RankBoard::judge(Instant now, Instant since) {
    std::vector<RankSeen> seen;
    for (auto node = nodes_.begin(); node != nodes_.end();) {
        const NodeTold& told = *node->second;
        if (told.at < since) {
            for (const RankProgress& rank : told.ranks) {
                looks_.erase(Rank(told.where.base_rank + rank.local_rank.value()));
            }
            base_rank_of_.erase(told.where.node);
            node = nodes_.erase(node);
            continue;
        }
        for (const RankProgress& rank : told.ranks) {
            seen.push_back({.rank = Rank(told.where.base_rank + rank.local_rank.value()),
                            .host = told.where.hostname,
                            .told = &rank,
                            .ago = now - told.at});
        }
        ++node;
    }
    stall_ = find_stall(seen, WatchLimits());
    slowest_.reset();
    const std::optional<Slowest> slowest = stall_ ? std::nullopt : find_slowest_now();
    if (slowest) {
        const auto next = nodes_.upper_bound(slowest->rank.value());
        slowest_ = NamedSlowest{.slowest = *slowest, .where = std::prev(next)->second->where};
    }
}

RanksTold RankBoard::told() const {
    std::vector<std::shared_ptr<const NodeTold>> nodes;
    nodes.reserve(nodes_.size());
    for (const auto& [base_rank, node] : nodes_) {
        nodes.push_back(node);
    }
    return {std::move(nodes), slowest_, stall_};
}

std::string RankBoard::line(const NodeId& node) const {
    const NodeTold* told_last = told(node);
    if (told_last == nullptr) {
        return {};
    }
    const std::string slowest = json_of(slowest_);
    return fmt::format("{{\"event\":\"progress\",\"node\":{},\"ranks\":[{}]{}{}{}}}",
                       quoted(node.value()), told_last->text, memory_fields(told_last->memory),
                       slowest.empty() ? "" : ",\"slowest\":", slowest);
}

const NodeTold* RankBoard::told(const NodeId& node) const {
    const auto found = base_rank_of_.find(node);
    return found == base_rank_of_.end() ? nullptr : nodes_.at(found->second).get();
}

std::size_t RanksTold::rank_count() const {
    std::size_t count = 0;
    for (const std::shared_ptr<const NodeTold>& node : nodes_) {
        count += node->ranks.size();
    }
    return count;
}

std::string RanksTold::ranks_json(std::size_t ranks_max) const {
    std::string list = "[";
    std::size_t count = 0;
    for (const std::shared_ptr<const NodeTold>& node : nodes_) {
        count += node->ranks.size();
        if (count > ranks_max) {
            break;
        }
        if (!node->text.empty()) {
            list += list.size() == 1 ? "" : ",";
            list += node->text;
        }
    }
    list += ']';
    return list;
}

std::string RanksTold::slowest_json() const {
    return json_of(slowest_);
}

void RanksTold::visit(const Visitor& visitor) const {
    for (const std::shared_ptr<const NodeTold>& node : nodes_) {
        for (const RankProgress& rank : node->ranks) {
            visitor(node->where, Rank(node->where.base_rank + rank.local_rank.value()), rank);
        }
    }
}

std::vector<StoreOperations> RanksTold::store() const {
    return nodes_.empty() || nodes_.front()->where.base_rank != 0 ? std::vector<StoreOperations>()
                                                                  : nodes_.front()->store;
}

}  // namespace ddprun::rdzv
