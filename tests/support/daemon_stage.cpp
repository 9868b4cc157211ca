#include "tests/support/daemon_stage.hpp"

#include <time.h>

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/overloaded.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/run_record.hpp"

namespace ddprun::test {

namespace {

const JobId kJob("scale");
constexpr Milliseconds kSync{5};  // a record to the disk

rdzv::Mac key() {
    return rdzv::sha256("made up");
}

}  // namespace

double thread_cpu_us() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

Stage::Stage(int nodes) : nodes_(nodes), connection_of_(static_cast<std::size_t>(nodes) + 1) {
    rows_.reserve(32);  // row_ points into it
}

void Stage::begin(const std::map<JobId, std::string>& records) {
    rdzv::DaemonHostOptions options;
    options.coordinator.limits = limits_;
    host_.emplace(options, Rng(1));
    lines_.clear();
    std::fill(connection_of_.begin(), connection_of_.end(), std::nullopt);
    beats_.clear();
    answers_.clear();
    timer_.reset();
    turn([&] {
        rdzv::DaemonEffects effects;
        host_->begin(now, rdzv::Keeping::IfPossible, records, effects);
        carry_out(effects);
    });
}

void Stage::measure(const std::string& event) {
    DDP_CHECK(rows_.size() < rows_.capacity());
    row_ = &rows_.emplace_back();
    row_->event = event;
}

void Stage::count(std::string_view bytes) {
    if (row_ != nullptr) {
        ++row_->messages;
        row_->message_bytes += bytes.size();
    }
}

rdzv::Join Stage::join_of(int node) const {
    rdzv::Join join;
    join.job = kJob;
    join.node = NodeId(fmt::format("gpu-node-{:05}", node));
    join.process = fmt::format("process-of-{:05}", node);
    join.hostname = join.node.value();
    join.slots = 8;
    join.topology_key = fmt::format("rack-{:03}", node / 16);
    join.addresses = {fmt::format("10.{}.{}.{}", node / 65536, node / 256 % 256, node % 256),
                      fmt::format("fd00::{:x}", node)};
    join.store = {.host = join.addresses.front(), .port = 40000};
    join.settings.min_nodes = nodes_;
    join.settings.max_nodes = nodes_;
    return join;
}

const rdzv::Coordinator& Stage::coordinator() const {
    const rdzv::JobHost* const job = host_->host(kJob);
    DDP_CHECK(job != nullptr);
    return job->coordinator();
}

// ------------------------------------------------------------------------------------------ inputs

void Stage::join(int node, rdzv::Join message) {
    const ConnectionId connection(++last_connection_);
    lines_.emplace(connection, Line{.of_agent = rdzv::FrameWriter(key()),
                                    .at_daemon = rdzv::FrameReader(key(), limits_.frame_bytes_max),
                                    .of_daemon = rdzv::FrameWriter(key()),
                                    .node = node});
    connection_of_[static_cast<std::size_t>(node)] = connection;
    receive(node, message);
}

void Stage::receive(int node, const rdzv::AgentMessage& message) {
    advance();
    if (row_ != nullptr) {
        ++row_->inputs;
    }
    send(connection_of_[static_cast<std::size_t>(node)].value(), message);
}

void Stage::beat(int node) {
    receive(node, rdzv::Beat{++beat_});
}

void Stage::send(ConnectionId connection, const rdzv::AgentMessage& message) {
    Line& line = lines_.at(connection);
    std::string bytes;
    line.of_agent.append(rdzv::encode(message), bytes);
    turn([&] {
        line.at_daemon.feed(bytes);
        const auto body = line.at_daemon.next();
        DDP_CHECK(body.has_value() && body->has_value());
        const auto decoded = rdzv::decode_agent_message(**body, limits_);
        DDP_CHECK(decoded.has_value());
        rdzv::DaemonEffects effects;
        host_->receives(now, connection, *decoded, effects);
        carry_out(effects);
    });
}

void Stage::end(int node, rdzv::PeerEnd how) {
    advance();
    if (row_ != nullptr) {
        ++row_->inputs;
    }
    std::optional<ConnectionId>& connection = connection_of_[static_cast<std::size_t>(node)];
    if (connection) {  // else the daemon has closed it
        turn([&] {
            rdzv::DaemonEffects effects;
            host_->ended(now, *connection, how, effects);
            carry_out(effects);
        });
        connection.reset();
    }
}

// -------------------------------------------------------------------------------------------- time

void Stage::pass(Duration time) {
    advance_to(now + time);
}

void Stage::advance() {
    advance_to(now + pace);
}

void Stage::advance_to(Instant then) {
    for (;;) {
        const Instant answer = answers_.empty() ? Instant::max() : answers_.front().at;
        const Instant timer = timer_ ? timer_->first : Instant::max();
        const Instant beat = beats_.empty() ? Instant::max() : beats_.front().first;
        const Instant next = std::min({answer, timer, beat});
        if (next > then) {
            break;
        }
        now = std::max(now, next);
        rdzv::DaemonEffects effects;
        if (next == beat) {
            const int node = beats_.front().second;
            beats_.pop_front();
            if (const auto connection = connection_of_[static_cast<std::size_t>(node)]) {
                beats_.emplace_back(now + beat_interval_, node);
                Row* const row = std::exchange(row_, nullptr);
                send(*connection, rdzv::Beat{++beat_});
                row_ = row;
            }
        } else if (next == answer) {
            const Answer done = answers_.front();
            answers_.pop_front();
            turn([&] {
                host_->written(now, done.life, done.number, "", effects);
                carry_out(effects);
            });
        } else {
            const rdzv::JobLife life = std::exchange(timer_, std::nullopt)->second;
            turn([&] {
                host_->timer_fired(now, life, effects);
                carry_out(effects);
                if (unread_) {  // nothing has arrived that was not fed
                    effects.clear();
                    host_->nothing_more_arrived(now, *std::exchange(unread_, std::nullopt),
                                                effects);
                    carry_out(effects);
                }
            });
        }
    }
    now = then;
}

// ----------------------------------------------------------------------------------------- effects

void Stage::carry_out(rdzv::DaemonEffects& effects) {
    for (const rdzv::DaemonEffect& effect : effects) {
        carry_out(effect);
    }
}

void Stage::carry_out(const rdzv::DaemonEffect& effect) {
    std::visit(Overloaded{
                   [this](const rdzv::Send& send) { hear(send); },
                   [this](const rdzv::CloseConnection& close) {
                       const int node = lines_.at(close.connection).node;
                       connection_of_[static_cast<std::size_t>(node)].reset();
                   },
                   [this](const rdzv::WriteJobRecord& wanted) {
                       static_cast<void>(rdzv::encode(wanted.write.record));
                       if (row_ != nullptr) {
                           ++row_->records;
                       }
                       answers_.push_back({now + kSync, wanted.life, wanted.write.number});
                   },
                   [this](const rdzv::SetJobTimer& set) { timer_.emplace(set.at, set.life); },
                   [this](const rdzv::ReadArrived& wanted) { unread_ = wanted.life; },
                   [](const rdzv::ResetConnection& reset) { DDP_CHECK(false, reset.reason); },
                   [](const auto&) {},
               },
               effect);
}

void Stage::hear(const rdzv::Send& send) {
    const auto found = lines_.find(send.connection);
    if (found == lines_.end()) {
        return;
    }
    std::string sealed;
    found->second.of_daemon.append(encoder_.body_of(send.message), sealed);
    count(sealed);
    if (const auto* accepted = std::get_if<rdzv::Accepted>(&send.message)) {
        run_token_ = accepted->run_token;
        if (accepted->lease > Milliseconds(0)) {
            beat_interval_ = accepted->beat_interval;
            beats_.emplace_back(now + beat_interval_, found->second.node);
        }
    }
    starts_ += std::holds_alternative<rdzv::Start>(send.message) ? 1 : 0;
}

}  // namespace ddprun::test
