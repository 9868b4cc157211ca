#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/host/daemon_host.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/frames.hpp"

namespace ddprun::test {

/// The cost of one kind of input.
struct Row {
    std::string event;
    std::size_t inputs = 0;
    std::vector<double> turns_us;  ///< thread CPU of each, and of the timers and records between
    std::size_t messages = 0;
    std::size_t message_bytes = 0;
    std::size_t records = 0;
};

/// A DaemonHost as a daemon drives it, its agents made up. Messages are opened and sealed with a
/// MAC as they travel, records are encoded; sockets, disk and log are left out. Its own clock: each
/// input comes `pace` after the one before, and between them nodes beat, timers fire and the
/// journal answers.
///
/// A turn is what a daemon's thread does for one input: open, decode, decide, encode, seal.
class Stage {
public:
    explicit Stage(int nodes);

    /// A daemon that begins with these records.
    void begin(const std::map<JobId, std::string>& records);

    /// Turns belong to this row from now on.
    void measure(const std::string& event);
    void measure_nothing() { row_ = nullptr; }
    [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
    /// A turn of the row, in which `act` is done.
    template <typename Act>
    void turn(Act act);

    /// The row's daemon has made these bytes.
    void count(std::string_view bytes);

    /// On a new connection.
    void join(int node, rdzv::Join message);
    void receive(int node, const rdzv::AgentMessage& message);
    void beat(int node);
    void end(int node, rdzv::PeerEnd how);
    /// Nothing comes for so long.
    void pass(Duration time);

    /// The join of the node's first ddprun. All of them are wanted.
    [[nodiscard]] rdzv::Join join_of(int node) const;
    [[nodiscard]] const rdzv::Coordinator& coordinator() const;
    [[nodiscard]] const std::string& run_token() const { return run_token_; }
    [[nodiscard]] std::size_t starts() const { return starts_; }
    [[nodiscard]] int nodes() const { return nodes_; }

    Instant now{std::chrono::hours(1)};
    Duration pace = std::chrono::microseconds(50);

private:
    /// Both ends of a connection.
    struct Line {
        rdzv::FrameWriter of_agent;
        rdzv::FrameReader at_daemon;
        rdzv::FrameWriter of_daemon;
        int node = 0;
    };
    struct Answer {
        Instant at;
        rdzv::JobLife life;
        std::uint64_t number = 0;
    };

    void advance();
    void advance_to(Instant then);
    void carry_out(rdzv::DaemonEffects& effects);
    void carry_out(const rdzv::DaemonEffect& effect);
    void hear(const rdzv::Send& send);
    void send(ConnectionId connection, const rdzv::AgentMessage& message);

    Limits limits_;
    int nodes_;
    std::optional<rdzv::DaemonHost> host_;
    std::uint64_t last_connection_ = 0;
    std::map<ConnectionId, Line> lines_;
    std::vector<std::optional<ConnectionId>> connection_of_;
    std::deque<std::pair<Instant, int>> beats_;
    Duration beat_interval_{};
    std::uint64_t beat_ = 0;
    std::optional<std::pair<Instant, rdzv::JobLife>> timer_;
    std::deque<Answer> answers_;
    std::optional<rdzv::JobLife> unread_;
    rdzv::RepeatEncoder encoder_;
    std::string run_token_;
    std::size_t starts_ = 0;
    std::vector<Row> rows_;
    Row* row_ = nullptr;
};

/// The processor time that this thread has used so far.
[[nodiscard]] double thread_cpu_us();

template <typename Act>
void Stage::turn(Act act) {
    const double began = thread_cpu_us();
    act();
    if (row_ != nullptr) {
        row_->turns_us.push_back(thread_cpu_us() - began);
    }
}

}  // namespace ddprun::test
