#include "rendezvous/server/progress_watch.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>
#include <variant>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"

namespace ddprun::rdzv {

namespace {

/// News of one node that did not come for so many intervals are old.
constexpr int kMissedNews = 5;

std::size_t tellers_of(const Run& run) {
    const auto& speakers = run.nodes.by_connection();
    return static_cast<std::size_t>(
        std::count_if(speakers.begin(), speakers.end(), [&run](const auto& speaker) {
            const Node& node = run.nodes.at(speaker.second);
            return node.is_member() && node.info.tells_progress;
        }));
}

Instant now_here() {
    return std::chrono::steady_clock::now();
}

}  // namespace

ProgressWatch::ProgressWatch(boost::asio::io_context& io, Jobs& jobs, NewsHooks hooks)
    : jobs_(jobs), hooks_(std::move(hooks)), timer_(io, [this] { turn(); }) {}

void ProgressWatch::look(const JobId& job) {
    const Instant now = now_here();
    const auto look_at = [this, now](const JobId& id) {
        watched_[id].until = now + limits_.watched_for;
    };
    const bool was_watching = !watched_.empty();
    if (!job.value().empty()) {
        look_at(job);
    } else {
        jobs_.host().visit([&](const JobId& id, const Coordinator&) { look_at(id); });
    }
    if (!was_watching && !watched_.empty() && !is_stopped_) {
        timer_.set(now);
    }
}

void ProgressWatch::look(const JobId& job, std::function<void()> answer) {
    look(job);
    if (is_judged(job)) {
        answer();
        return;
    }
    const Instant now = now_here();
    looking_.push_back(
        {.job = job, .answer = std::move(answer), .until = now + limits_.progress_interval});
    timer_.set(now);
}

/// Calls `visitor` with the runs that are meant and have ranks.
template <typename Visitor>
void ProgressWatch::visit_running(const JobId& wanted, Visitor visitor) const {
    jobs_.host().visit([&](const JobId& id, const Coordinator& coordinator) {
        const Run* run = coordinator.run();
        if (run != nullptr && std::holds_alternative<Running>(run->phase) &&
            (wanted.value().empty() || id == wanted)) {
            visitor(id, *run);
        }
    });
}

bool ProgressWatch::is_complete(const Watched& watched, const Run& run) {
    return watched.tellers == 0 || (watched.board.generation() == run.current.number &&
                                    watched.board.node_count() >= watched.tellers);
}

bool ProgressWatch::is_judged(const JobId& wanted) const {
    bool is_judged = true;
    visit_running(wanted, [&](const JobId& id, const Run& run) {
        const auto found = watched_.find(id);
        is_judged =
            is_judged && found != watched_.end() && found->second.judged == run.current.number;
    });
    return is_judged;
}

void ProgressWatch::answer_those_due(Instant now) {
    const auto due = std::stable_partition(
        looking_.begin(), looking_.end(), [this, now](const Looking& looking) {
            return looking.until > now && !is_judged(looking.job);
        });
    const std::vector<Looking> answered(std::make_move_iterator(due),
                                        std::make_move_iterator(looking_.end()));
    looking_.erase(due, looking_.end());
    for (const Looking& looking : answered) {
        // Nodes that should have told are waited for once.
        visit_running(looking.job, [this](const JobId& id, const Run& run) {
            if (const auto found = watched_.find(id); found != watched_.end()) {
                found->second.judged = run.current.number;
            }
        });
        looking.answer();
    }
}

void ProgressWatch::hear(const JobId& job, ConnectionId connection, const Progress& progress) {
    const auto found = watched_.find(job);
    const Run* run = jobs_.host().run(job);
    if (found == watched_.end() || run == nullptr || progress.generation != run->current.number) {
        return;
    }
    const auto speaker = run->nodes.by_connection().find(connection);
    if (speaker == run->nodes.by_connection().end()) {
        return;
    }
    const Node& node = run->nodes.at(speaker->second);
    const bool has_more = progress.ranks.size() > static_cast<std::size_t>(node.info.slots);
    if (!node.is_member() || has_more) {
        return;
    }
    const int base_rank = run->current.rank_of(node.info.node, LocalRank(0)).value();
    found->second.board.take(
        now_here(),
        {.node = node.info.node, .hostname = node.info.hostname, .base_rank = base_rank}, progress);
    found->second.news.insert(node.info.node);
    if (!looking_.empty() && is_complete(found->second, *run)) {
        timer_.set(now_here());
    }
}

const RankBoard* ProgressWatch::board(const JobId& job) const {
    const auto found = watched_.find(job);
    const Run* run = jobs_.host().run(job);
    const bool is_known = found != watched_.end() && run != nullptr &&
                          found->second.board.generation() == run->current.number;
    return is_known ? &found->second.board : nullptr;
}

void ProgressWatch::stop() {
    is_stopped_ = true;
    watched_.clear();
    looking_.clear();
    timer_.set(std::nullopt);
}

Milliseconds ProgressWatch::interval_of(const Run& run) const {
    const auto nodes = static_cast<Milliseconds::rep>(run.current.places.size());
    return std::max(limits_.progress_interval, limits_.progress_spacing * nodes);
}

/// True: all nodes that are to report now have been told so, in this turn or before.
bool ProgressWatch::tell_nodes(Instant now, Watched& watched, const Run& run) {
    const auto& speakers = run.nodes.by_connection();
    std::erase_if(watched.told, [&](const auto& told) { return !speakers.contains(told.first); });
    std::size_t orders = 0;
    for (const auto& [connection, id] : speakers) {
        const Node& node = run.nodes.at(id);
        Instant& until = watched.told[connection];
        if (!node.info.tells_progress || !node.is_member() ||
            until >= now + limits_.watched_for / 2) {
            continue;
        }
        if (orders++ == limits_.watch_orders_max) {
            return false;
        }
        until = watched.until;
        hooks_.send(connection,
                    Watch{.interval = interval_of(run),
                          .lasts = std::chrono::duration_cast<Milliseconds>(watched.until - now)});
    }
    return true;
}

/// Forgets who is watched no longer, and judges the others.
void ProgressWatch::begin_round(Instant now) {
    for (auto it = watched_.begin(); it != watched_.end();) {
        auto& [id, watched] = *it;
        const Run* run = jobs_.host().run(id);
        if (run == nullptr || watched.until <= now) {
            jobs_.drop_passing(id);
            it = watched_.erase(it);
            continue;
        }
        watched.board.judge(now, now - kMissedNews * interval_of(*run));
        watched.tellers = tellers_of(*run);
        if (is_complete(watched, *run)) {
            watched.judged = run->current.number;
        }
        watched.passing = std::exchange(watched.news, {});
        ++it;
    }
    answer_those_due(now);
}

/// True: all of this round.
bool ProgressWatch::pass_news(const JobId& job, Watched& watched, std::size_t& lines_left) {
    while (!watched.passing.empty() && lines_left > 0) {
        --lines_left;
        const NodeId node = *watched.passing.begin();
        watched.passing.erase(watched.passing.begin());
        if (std::string line = watched.board.line(node); !line.empty()) {
            jobs_.pass(job, node.value(), std::move(line));
            has_passed_ = true;
        }
    }
    return watched.passing.empty();
}

/// A round has as many turns as it takes: none of them is long.
void ProgressWatch::turn() {
    const Instant now = now_here();
    if (!std::exchange(is_round_begun_, true)) {
        begin_round(now);
    }
    bool is_whole = true;
    std::size_t lines_left = limits_.watch_lines_max;
    for (auto& [id, watched] : watched_) {
        if (const Run* run = jobs_.host().run(id)) {
            is_whole = tell_nodes(now, watched, *run) && is_whole;
        }
        is_whole = pass_news(id, watched, lines_left) && is_whole;
    }
    if (!is_whole) {
        timer_.set(now);
        return;
    }
    is_round_begun_ = false;
    if (std::exchange(has_passed_, false)) {
        hooks_.news();
    }
    if (!watched_.empty() || !looking_.empty()) {
        timer_.set(now + limits_.progress_interval);
    }
}

}  // namespace ddprun::rdzv
