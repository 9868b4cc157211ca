#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/limits.hpp"
#include "base/os/helper.hpp"
#include "base/result.hpp"

namespace ddprun::launcher {

/// Asks Slurm by scontrol, which has Limits::requeue_timeout for each question. Owned and called by
/// the agent's thread; outlives the run of `io`.
class SlurmRequeue {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        std::function<void(int pid)> on_child;  ///< one that is no worker's was started
    };

    /// `scontrol`: its path. `job`: its number.
    SlurmRequeue(boost::asio::io_context& io, const Limits& limits, std::string scontrol,
                 std::string job, Events events);

    /// Says, when that is known, why Slurm would not put the job back into its queue.
    void check();

    /// Puts the job back unless it has ended otherwise meanwhile: who cancels a job does not want
    /// it back. `on_done` comes once, when what came of it is said; what check() has begun is over.
    void carry_out(std::function<void()> on_done);

private:
    using OnAnswer = std::function<void(const Result<std::string>& shown)>;

    void ask(const std::vector<std::string>& words, OnAnswer on_answer);
    [[nodiscard]] Result<void> start(const std::vector<std::string>& words);
    [[nodiscard]] std::string read_output();
    void answer(const std::optional<siginfo_t>& end);
    void requeue(const Result<std::string>& shown);
    void say(const std::string& what);

    boost::asio::io_context& io_;
    Limits limits_;
    std::string scontrol_;
    std::string job_;
    Events events_;
    Helper program_;
    UniqueFd output_;
    OnAnswer on_answer_;
    std::function<void()> on_done_;
};

}  // namespace ddprun::launcher
