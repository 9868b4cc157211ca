// Many agents in one process, with the real protocol, against one daemon: how long the launcher's
// share of a restart is, and what the daemon costs while nothing happens. control_plane.py starts
// the daemon and this; the result is one JSON object on standard output.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/os/open_files.hpp"
#include "base/rng.hpp"
#include "rendezvous/transport/secret_file.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "tests/bench/agent_crowd_agent.hpp"

namespace ddprun::test {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// The daemon pauses after more starts than this in a minute; the first one counts.
constexpr int kRestartsPerJob = 9;
constexpr std::chrono::seconds kDeadline{120};
constexpr std::chrono::milliseconds kBetweenRestarts{100};

struct Flags {
    std::string endpoint;
    std::string secret_file;
    int daemon_pid = 0;
    int agents = 1000;
    int workers = 1;
    int restarts = 0;
    double settle_s = 2;
    double idle_s = 0;
    std::uint64_t seed = 1;
};

double milliseconds(Clock::duration duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
}

/// User and system time so far, and resident memory, of any process.
struct Usage {
    double cpu_s = 0;
    double resident_mb = 0;
};

Usage usage_of(int pid) {
    Usage usage;
    const std::string folder = "/proc/" + std::to_string(pid);
    std::string line;
    std::getline(std::ifstream(folder + "/stat") >> std::ws, line);
    // The name, which may hold anything, ends with the last bracket; then state and ten fields.
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string skipped;
    for (int i = 0; i < 11; ++i) {
        fields >> skipped;
    }
    double user = 0;
    double system = 0;
    fields >> user >> system;
    usage.cpu_s = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
    double pages = 0;
    std::ifstream statm(folder + "/statm");
    statm >> pages >> pages;
    usage.resident_mb = pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
    return usage;
}

/// All agents of one job, and what has happened to them since.
class Crowd {
public:
    Crowd(boost::asio::io_context& io, const Flags& flags, const rdzv::Endpoint& endpoint,
          const rdzv::JobSecret& secret, const std::string& job);

    void start();

    /// Waits until every agent has received the Start of `generation` or of a later one; when the
    /// last one had it.
    Clock::time_point await_generation(int generation);
    void await_exits();
    void run_for(Clock::duration time) { io_.run_for(time); }
    [[nodiscard]] CrowdAgent& any(Rng& rng) { return *agents_[rng.below(agents_.size())]; }

    [[nodiscard]] std::size_t lost_links() const { return lost_links_; }
    [[nodiscard]] int node_losses() const { return node_losses_; }

    /// Returns how long the daemon took to answer each beat since the last call.
    [[nodiscard]] std::vector<double> take_beat_answers_ms() {
        return std::exchange(beat_answers_ms_, {});
    }

private:
    void await(const std::string& what, const std::function<bool()>& is_true);

    boost::asio::io_context& io_;
    CrowdEvents events_;
    std::vector<std::unique_ptr<CrowdAgent>> agents_;
    std::map<std::uint64_t, std::size_t> started_;  ///< generation → agents that know of it
    Clock::time_point last_start_;
    std::size_t exited_ = 0;
    std::size_t lost_links_ = 0;
    int node_losses_ = 0;
    std::vector<double> beat_answers_ms_;
};

Crowd::Crowd(boost::asio::io_context& io, const Flags& flags, const rdzv::Endpoint& endpoint,
             const rdzv::JobSecret& secret, const std::string& job)
    : io_(io) {
    events_.on_start = [this](const rdzv::Start& start) {
        last_start_ = Clock::now();
        ++started_[start.generation.value()];
        node_losses_ = std::max(node_losses_, start.node_losses);
    };
    events_.on_link_down = [this] { ++lost_links_; };
    events_.on_exit = [this](int) { ++exited_; };
    events_.on_beat_answered = [this](Clock::duration after) {
        beat_answers_ms_.push_back(milliseconds(after));
    };
    for (int i = 0; i < flags.agents; ++i) {
        agent::SupervisorOptions options;
        options.identity.job = JobId(job);
        options.identity.node = NodeId(fmt::format("{}-{}", job, i));
        options.identity.hostname = fmt::format("node-{:05}", i);
        options.identity.settings.min_nodes = flags.agents;
        options.identity.settings.max_nodes = flags.agents;
        options.identity.settings.max_restarts = kRestartsPerJob;
        options.identity.slots = flags.workers;
        options.command = {"worker"};
        rdzv::ClientOptions client;
        client.endpoints = {endpoint};
        client.secret = secret;
        client.job = JobId(job);
        client.rng = Rng(flags.seed + static_cast<std::uint64_t>(i));
        const auto store_port = static_cast<std::uint16_t>(1024 + i);
        agents_.push_back(std::make_unique<CrowdAgent>(io, std::move(options), std::move(client),
                                                       store_port, events_));
    }
}

void Crowd::start() {
    for (const std::unique_ptr<CrowdAgent>& agent : agents_) {
        agent->start();
    }
}

void Crowd::await(const std::string& what, const std::function<bool()>& is_true) {
    const Clock::time_point deadline = Clock::now() + kDeadline;
    while (!is_true()) {
        if (Clock::now() > deadline) {
            fmt::print(stderr, "agent_crowd: after {} s still waiting until {}\n",
                       kDeadline.count(), what);
            std::exit(1);
        }
        io_.run_one_until(deadline);
        io_.poll();
    }
}

Clock::time_point Crowd::await_generation(int generation) {
    const auto number = static_cast<std::uint64_t>(generation);
    await(fmt::format("all {} agents have generation {}", agents_.size(), generation),
          [this, number] {
              // A later one if an agent was lost meanwhile: then the samples are wrong, and said
              // so.
              return std::any_of(started_.lower_bound(number), started_.end(),
                                 [this](const auto& g) { return g.second >= agents_.size(); });
          });
    return last_start_;
}

void Crowd::await_exits() {
    await("all agents have gone", [this] { return exited_ == agents_.size(); });
}

json summary(std::vector<double> samples) {
    if (samples.empty()) {
        return nullptr;
    }
    std::sort(samples.begin(), samples.end());
    // Nearest rank: a value that was really measured.
    const auto at = [&samples](int percent) {
        const std::size_t rank = (samples.size() * static_cast<std::size_t>(percent) + 99) / 100;
        return samples[rank - 1];
    };
    return {{"p50", at(50)},     {"p95", at(95)},           {"p99", at(99)},
            {"max", at(100)},    {"count", samples.size()}, {"min", samples.front()},
            {"samples", samples}};
}

Clock::duration seconds(double count) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

/// While nothing happens but beats, and what watchers want.
json measure_idle(Crowd& crowd, const Flags& flags) {
    crowd.run_for(seconds(flags.settle_s));  // what the forming left behind; watchers come
    (void)crowd.take_beat_answers_ms();
    const Usage daemon = usage_of(flags.daemon_pid);
    const Usage own = usage_of(::getpid());
    const Clock::time_point from = Clock::now();
    crowd.run_for(seconds(flags.idle_s));
    const double measured_s = milliseconds(Clock::now() - from) / 1000;
    const Usage daemon_after = usage_of(flags.daemon_pid);
    const Usage own_after = usage_of(::getpid());
    return {{"seconds", measured_s},
            {"beat_answer_ms", summary(crowd.take_beat_answers_ms())},
            {"daemon_cpu_percent", 100 * (daemon_after.cpu_s - daemon.cpu_s) / measured_s},
            {"daemon_resident_mb", daemon_after.resident_mb},
            {"crowd_cpu_percent", 100 * (own_after.cpu_s - own.cpu_s) / measured_s},
            {"crowd_resident_mb", own_after.resident_mb}};
}

struct Samples {
    std::vector<double> form_ms;
    std::vector<double> restart_ms;
    std::vector<double> end_ms;
    double daemon_cpu_s = 0;  ///< in all restarts
    double own_cpu_s = 0;
};

void measure_restarts(Crowd& crowd, const Flags& flags, int count, Rng& rng, Samples& samples) {
    for (int i = 0; i < count; ++i) {
        crowd.run_for(kBetweenRestarts);
        const Usage daemon = usage_of(flags.daemon_pid);
        const Usage own = usage_of(::getpid());
        const Clock::time_point failed = Clock::now();
        crowd.any(rng).fail_worker();
        samples.restart_ms.push_back(milliseconds(crowd.await_generation(i + 2) - failed));
        samples.daemon_cpu_s += usage_of(flags.daemon_pid).cpu_s - daemon.cpu_s;
        samples.own_cpu_s += usage_of(::getpid()).cpu_s - own.cpu_s;
    }
}

int measure(const Flags& flags, const rdzv::Endpoint& endpoint, const rdzv::JobSecret& secret) {
    boost::asio::io_context io(1);
    const auto goes_on = boost::asio::make_work_guard(io);
    Rng rng(flags.seed);
    Samples samples;
    json result = {{"agents", flags.agents}};
    std::size_t lost_links = 0;
    int node_losses = 0;
    int left = flags.restarts;
    for (int number = 1; number == 1 || left > 0; ++number) {
        Crowd crowd(io, flags, endpoint, secret, fmt::format("crowd-{}", number));
        const Clock::time_point from = Clock::now();
        crowd.start();
        samples.form_ms.push_back(milliseconds(crowd.await_generation(1) - from));
        if (number == 1 && flags.idle_s > 0) {
            result["idle"] = measure_idle(crowd, flags);
        }
        const int count = std::min(left, kRestartsPerJob);
        measure_restarts(crowd, flags, count, rng, samples);
        left -= count;
        lost_links += crowd.lost_links();
        node_losses += crowd.node_losses();
        if (count == kRestartsPerJob) {  // the budget is used up: this failure is the verdict
            crowd.run_for(kBetweenRestarts);
            const Clock::time_point failed = Clock::now();
            crowd.any(rng).fail_worker();
            crowd.await_exits();
            samples.end_ms.push_back(milliseconds(Clock::now() - failed));
        } else {
            io.stop();
            break;  // the process ends, and all its agents with it
        }
    }
    result["form_ms"] = summary(samples.form_ms);
    result["restart_ms"] = summary(samples.restart_ms);
    result["verdict_to_gone_ms"] = summary(samples.end_ms);
    if (flags.restarts > 0) {
        result["daemon_cpu_ms_per_restart"] = 1000 * samples.daemon_cpu_s / flags.restarts;
        result["crowd_cpu_ms_per_restart"] = 1000 * samples.own_cpu_s / flags.restarts;
    }
    result["daemon_resident_mb"] = usage_of(flags.daemon_pid).resident_mb;
    result["lost_links"] = lost_links;
    result["node_losses"] = node_losses;
    fmt::print("{}\n", result.dump());
    std::fflush(stdout);
    // Connections that are still open would each be told of the end of the crowd.
    std::_Exit(0);
}

int run(const Flags& flags) {
    raise_open_files();
    const Result<rdzv::Endpoint> endpoint = rdzv::parse_endpoint(flags.endpoint);
    const Result<rdzv::JobSecret> secret = rdzv::load_or_create_secret(flags.secret_file);
    if (!endpoint || !secret) {
        fmt::print(stderr, "agent_crowd: {}\n",
                   endpoint ? secret.error().what : endpoint.error().what);
        return 2;
    }
    return measure(flags, *endpoint, *secret);
}

}  // namespace
}  // namespace ddprun::test

int main(int argc, char** argv) {
    ddprun::test::Flags flags;
    CLI::App app("Many agents in one process against one ddprun-rendezvous; prints JSON.");
    app.add_option("--endpoint", flags.endpoint, "HOST:PORT of the daemon")->required();
    app.add_option("--secret-file", flags.secret_file)->required();
    app.add_option("--daemon-pid", flags.daemon_pid)->required();
    app.add_option("--agents", flags.agents)->check(CLI::Range(2, 16384));
    app.add_option("--workers", flags.workers, "of each agent")->check(CLI::Range(1, 64));
    app.add_option("--restarts", flags.restarts, "worker failures to measure");
    app.add_option("--settle-s", flags.settle_s, "seconds between forming and --idle-s");
    app.add_option("--idle-s", flags.idle_s, "seconds of beats alone to measure");
    app.add_option("--seed", flags.seed);
    CLI11_PARSE(app, argc, argv);
    return ddprun::test::run(flags);
}
