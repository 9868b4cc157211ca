#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/supervise/supervisor.hpp"
#include "base/instant.hpp"

namespace ddprun::agent {

/// Options of a node with `slots` workers in a job of up to `nodes` nodes.
inline SupervisorOptions two_slot_options(int nodes = 2) {
    SupervisorOptions options;
    options.identity.job = JobId("llama");
    options.identity.node = NodeId("node-a");
    options.identity.hostname = "gpu-01";
    options.identity.slots = 2;
    options.identity.settings.max_nodes = nodes;
    options.command = {"/bin/train", "--device=${local_rank}"};
    options.log_dir = "/logs/llama_0";
    return options;
}

/// A Supervisor, a clock that is moved by hand, and what the last input made it do.
struct Rig {
    explicit Rig(SupervisorOptions options = two_slot_options()) : supervisor(std::move(options)) {}

    void give(const Input& input) {
        effects.clear();
        supervisor.step(now, input, effects);
        while (!is_disk_slow && answer_one_collection()) {}
    }
    /// A worker that left nothing behind.
    bool answer_one_collection() {
        for (; looked_at < effects.size(); ++looked_at) {
            if (const auto* collect = std::get_if<CollectLastWords>(&effects[looked_at])) {
                ++looked_at;
                supervisor.step(now, LastWords{collect->generation, collect->local_rank, {}, {}},
                                effects);
                return true;
            }
        }
        looked_at = 0;
        return false;
    }
    void hear(rdzv::RendezvousMessage message) { give(FromRendezvous{std::move(message)}); }
    void pass(Duration time) {
        now += time;
        give(Tick{});
    }
    void exit(int local_rank, int code, int generation = 1) {
        rdzv::Evidence evidence;
        evidence.exit_code = code;
        give(WorkerExited{Generation(static_cast<std::uint64_t>(generation)), LocalRank(local_rank),
                          evidence});
    }
    void die(int local_rank, int signal) {
        rdzv::Evidence evidence;
        evidence.signal = signal;
        give(WorkerExited{Generation(1), LocalRank(local_rank), evidence});
    }

    /// The one effect of this type; a failure of the test if there is not exactly one.
    template <typename T>
    [[nodiscard]] std::optional<T> effect() const {
        std::optional<T> result;
        int count = 0;
        for (const Effect& one : effects) {
            if (const T* match = std::get_if<T>(&one)) {
                result = *match;
                ++count;
            }
        }
        return count == 1 ? result : std::nullopt;
    }
    template <typename T>
    [[nodiscard]] bool does() const {
        for (const Effect& one : effects) {
            if (std::holds_alternative<T>(one)) {
                return true;
            }
        }
        return false;
    }
    /// The messages of this type that were sent.
    template <typename T>
    [[nodiscard]] std::vector<T> sent() const {
        std::vector<T> result;
        for (const Effect& one : effects) {
            if (const SendToRendezvous* send = std::get_if<SendToRendezvous>(&one)) {
                if (const T* match = std::get_if<T>(&send->message)) {
                    result.push_back(*match);
                }
            }
        }
        return result;
    }
    [[nodiscard]] bool sends_anything() const { return does<SendToRendezvous>(); }
    [[nodiscard]] std::string said() const {
        std::string text;
        for (const Effect& one : effects) {
            if (const Say* say = std::get_if<Say>(&one)) {
                text += (text.empty() ? "" : "\n") + say->text;
            }
        }
        return text;
    }
    [[nodiscard]] int exit_code() const {
        const std::optional<Exit> exit_effect = effect<Exit>();
        return exit_effect.has_value() ? exit_effect->code : -1;
    }

    // ---------------------------------------------------------------- the usual way to a state

    /// Connected, store open, accepted; waits for a start.
    void become_waiting(Milliseconds beat_interval = Milliseconds(0)) {
        give(LinkUp{"10.0.0.1"});
        give(StoreOpened{{"10.0.0.1", 4001}});
        hear(rdzv::Accepted{
            .run_token = "t1", .lease = beat_interval * 5, .beat_interval = beat_interval});
    }
    [[nodiscard]] static rdzv::Start row(int generation = 1, int group_rank = 0) {
        rdzv::Start start;
        start.generation = Generation(static_cast<std::uint64_t>(generation));
        start.digest = "d" + std::to_string(generation);
        start.group_rank = group_rank;
        start.group_world_size = 2;
        start.base_rank = group_rank * 2;
        start.world_size = 4;
        start.role_base_rank = start.base_rank;
        start.role_world_size = 4;
        start.max_restarts = 3;
        start.store =
            group_rank == 0 ? StoreAddress{"10.0.0.1", 4001} : StoreAddress{"10.0.0.9", 5001};
        if (group_rank == 0) {
            start.admitted = {"10.0.0.1", "10.0.0.9"};
        }
        return start;
    }
    void become_running(int group_rank = 1) {
        become_waiting();
        hear(row(1, group_rank));
    }
    [[nodiscard]] static rdzv::Stop stop(rdzv::StopCause cause = rdzv::StopCause::Failure,
                                         int generation = 1,
                                         Milliseconds grace = Milliseconds(5000)) {
        return {.generation = Generation(static_cast<std::uint64_t>(generation)),
                .cause = cause,
                .signal = 15,
                .grace = grace,
                .why = "because"};
    }
    void become_stopping(int group_rank = 1) {
        become_running(group_rank);
        hear(stop());
    }
    void become_killing(int group_rank = 1) {
        become_stopping(group_rank);
        exit(0, 143);
        exit(1, 143);
    }
    void become_gone() {
        become_killing();
        give(Emptied{Generation(1)});
    }

    bool is_disk_slow = false;  ///< last words are not there at once: give(LastWords{…})
    Instant now = Instant(std::chrono::seconds(1000));
    Effects effects;
    Supervisor supervisor;
    std::size_t looked_at = 0;
};

}  // namespace ddprun::agent
