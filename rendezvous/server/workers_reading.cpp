#include "rendezvous/server/workers_reading.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/core/run.hpp"

namespace ddprun::rdzv {

namespace {

Instant now_here() {
    return std::chrono::steady_clock::now();
}

/// Whether `node` may have what is asked for: of a rank now, only its own node.
bool is_asked(const Run& run, const Node& node, const ReadWorkers& question) {
    if (!node.info.shows_workers) {
        return false;
    }
    if (!question.rank || question.generation || question.follows || !node.is_member()) {
        return !question.rank || question.generation || question.follows;
    }
    const int base = run.current.rank_of(node.info.node, LocalRank(0)).value();
    return *question.rank >= base && *question.rank < base + node.info.slots;
}

/// Told to who reads.
std::string notice_of(const std::string& host, const std::string& why) {
    return fmt::format("[{}] ddprun: {}\n", host, why);
}

constexpr const char* kGone = "it is gone before all was read";

}  // namespace

WorkersReading::WorkersReading(boost::asio::io_context& io, Jobs& jobs, const Limits& limits,
                               NewsHooks hooks)
    : jobs_(jobs), limits_(limits), hooks_(std::move(hooks)), timer_(io, [this] { judge(); }) {}

std::deque<WorkersReading::Named> WorkersReading::nodes_of(const Run& run,
                                                           const ReadWorkers& question) {
    std::vector<std::pair<int, Named>> found;
    for (const auto& [connection, id] : run.nodes.by_connection()) {
        const Node& node = run.nodes.at(id);
        if (is_asked(run, node, question)) {
            found.push_back(
                {node.is_member() ? run.current.rank_of(id, LocalRank(0)).value() : INT_MAX,
                 {connection, node.info.hostname}});
        }
    }
    std::sort(found.begin(), found.end());
    std::deque<Named> nodes;
    for (auto& [rank, node] : found) {
        nodes.push_back(std::move(node));
    }
    return nodes;
}

Result<std::uint64_t> WorkersReading::begin(const JobId& job, const ReadWorkers& question) {
    const Run* run = jobs_.host().run(job);
    if (readings_.size() >= limits_.readers_max) {
        return Error{ErrorCode::Unreachable,
                     fmt::format("{} read logs here already, the limit", limits_.readers_max)};
    }
    std::deque<Named> nodes = run == nullptr ? std::deque<Named>() : nodes_of(*run, question);
    if (nodes.empty()) {
        return Error{ErrorCode::NotFound,
                     fmt::format("no node of job {} is here that has {}; its nodes keep their logs",
                                 job.value(), question.rank ? "that rank" : "workers to show")};
    }
    const std::uint64_t number = ++last_;
    Reading& reading = readings_[number];
    reading.job = job;
    reading.question = question;
    reading.question.reader = number;
    reading.question.follows = question.follows && !question.generation;
    const std::size_t share = limits_.read_waiting_bytes_max / nodes.size();
    reading.question.piece_bytes = static_cast<int>(
        std::clamp(share, limits_.read_piece_bytes_min, limits_.read_piece_bytes_max));
    reading.left = std::move(nodes);
    open_next(reading);
    return number;
}

/// One in turn, or all of who follows.
void WorkersReading::open_next(Reading& reading) {
    while (!reading.left.empty() && (reading.open.empty() || reading.question.follows)) {
        const ConnectionId node = reading.left.front().first;
        reading.open.insert(std::move(reading.left.front()));
        reading.left.pop_front();
        reading.met.insert(node);
        hooks_.send(node, reading.question);
    }
    reading.answer_by = now_here() + limits_.read_answer_timeout;
    arm();
}

std::optional<std::string> WorkersReading::take(std::uint64_t number) {
    const auto found = readings_.find(number);
    if (found == readings_.end()) {
        return std::nullopt;
    }
    Reading& reading = found->second;
    std::string taken = std::exchange(reading.waiting, {});
    // A take() in vain, on news of other readers, gives no node more time.
    if (!reading.owed.empty()) {
        reading.answer_by = now_here() + limits_.read_answer_timeout;
    }
    for (const ConnectionId node : std::exchange(reading.owed, {})) {
        hooks_.send(node, ReadOn{.reader = number});
    }
    const Run* run = jobs_.host().run(reading.job);
    const bool may_come =
        reading.question.follows && run != nullptr && !std::holds_alternative<Closed>(run->phase);
    if (taken.empty() && reading.open.empty() && !may_come) {
        readings_.erase(found);
        return std::nullopt;
    }
    return taken;
}

void WorkersReading::end(std::uint64_t number) {
    const auto found = readings_.find(number);
    if (found == readings_.end()) {
        return;
    }
    for (const auto& [node, host] : found->second.open) {
        hooks_.send(node, ReadOn{.reader = number, .stops = true});
    }
    readings_.erase(found);
}

void WorkersReading::hear(ConnectionId connection, const WorkersRead& piece) {
    const auto found = readings_.find(piece.reader);
    if (found == readings_.end() || !found->second.open.contains(connection)) {
        return;
    }
    Reading& reading = found->second;
    if (reading.owed.contains(connection)) {
        return;  // It has not waited: what it says more is not kept.
    }
    reading.waiting += piece.bytes;
    if (!piece.bytes.empty() && piece.bytes.back() != '\n') {
        reading.waiting += '\n';
    }
    if (piece.is_last) {
        close(reading, connection, piece.error);
    } else {
        reading.owed.insert(connection);
        reading.answer_by = now_here() + limits_.read_answer_timeout;
    }
    hooks_.news();
}

/// `why` is told to who reads, if it is not empty.
void WorkersReading::close(Reading& reading, ConnectionId node, const std::string& why) {
    if (!why.empty()) {
        reading.waiting += notice_of(reading.open.at(node), why);
    }
    reading.open.erase(node);
    reading.owed.erase(node);
    open_next(reading);
}

void WorkersReading::ended(ConnectionId connection) {
    bool has_news = false;
    for (auto& [number, reading] : readings_) {
        const auto in_turn =
            std::find_if(reading.left.begin(), reading.left.end(),
                         [connection](const Named& node) { return node.first == connection; });
        if (in_turn != reading.left.end()) {
            reading.waiting += notice_of(in_turn->second, kGone);
            reading.left.erase(in_turn);
            has_news = true;
        }
        if (reading.open.contains(connection)) {
            const bool follows = reading.question.follows;
            close(reading, connection, follows ? "" : kGone);
            has_news = true;
        }
    }
    if (has_news) {
        hooks_.news();
    }
}

void WorkersReading::stepped(const JobId& job, const Run* run) {
    for (auto& [number, reading] : readings_) {
        if (reading.job != job || !reading.question.follows) {
            continue;
        }
        if (run == nullptr || std::holds_alternative<Closed>(run->phase)) {
            hooks_.news();
            continue;
        }
        // Nearly every step is a beat.
        if (reading.connects_seen == run->nodes.connects() && reading.run_looked_at == run->token) {
            continue;
        }
        reading.connects_seen = run->nodes.connects();
        reading.run_looked_at = run->token;
        for (Named& node : nodes_of(*run, reading.question)) {
            if (!reading.met.contains(node.first)) {
                reading.left.push_back(std::move(node));
            }
        }
        open_next(reading);
    }
}

void WorkersReading::arm() {
    Instant first = Instant::max();
    for (const auto& [number, reading] : readings_) {
        if (!reading.question.follows && !reading.open.empty()) {
            first = std::min(first, reading.answer_by);
        }
    }
    timer_.set(first == Instant::max() ? std::nullopt : std::optional(first));
}

/// A node that does not answer its turn is dropped. A node whose answer is not taken yet waits.
void WorkersReading::judge() {
    const Instant now = now_here();
    for (auto& [number, reading] : readings_) {
        if (reading.question.follows || reading.answer_by > now || reading.open.empty()) {
            continue;
        }
        if (!reading.owed.empty()) {
            reading.answer_by = now + limits_.read_answer_timeout;
            continue;
        }
        const ConnectionId node = reading.open.begin()->first;
        hooks_.send(node, ReadOn{.reader = number, .stops = true});
        close(reading, node,
              fmt::format("it does not answer within {} s",
                          limits_.read_answer_timeout.count() / 1000));
    }
    arm();
    hooks_.news();
}

void WorkersReading::stop() {
    readings_.clear();
    timer_.set(std::nullopt);
}

}  // namespace ddprun::rdzv
