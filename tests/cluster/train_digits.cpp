// The C++ example under ddprun: the same parameters, bit for bit, on every run of the same world
// size, whatever is killed in between. DDPRUN_TRAIN_KILLS says how often something is killed (20).

#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/rng.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

constexpr int kEpochs = 6;

/// A job of `nodes` ddprun on this machine; `nnodes` and `flags` as --nnodes and further flags.
struct Shape {
    int nodes = 1;
    int slots = 2;
    std::string nnodes = {};
    std::vector<std::string> flags = {};

    [[nodiscard]] int world_size() const { return nodes * slots; }
};

class Job {
public:
    Job(Cluster& cluster, Shape shape, std::string checkpoint_dir)
        : cluster_(cluster), shape_(shape), checkpoint_dir_(std::move(checkpoint_dir)) {
        for (int i = 0; i < shape.nodes; ++i) {
            nodes.push_back(&start_node());
        }
    }

    Process& start_node() {
        std::vector<std::string> args = {"--nproc-per-node", std::to_string(shape_.slots),
                                         "--max-restarts", "3"};
        const std::string nnodes =
            shape_.nnodes.empty() ? std::to_string(shape_.nodes) : shape_.nnodes;
        if (nnodes != "1") {
            args.insert(args.end(),
                        {"--nnodes", nnodes, "--rdzv-id", "digits", "--rdzv-endpoint",
                         port_.endpoint(), "--rdzv-conf", "last_call_timeout=0,grow_delay=0"});
        }
        args.insert(args.end(), {bin_dir() + "/train_digits", "--epochs", std::to_string(kEpochs),
                                 "--checkpoint-dir", checkpoint_dir_});
        args.insert(args.end(), shape_.flags.begin(), shape_.flags.end());
        return cluster_.start_ddprun(args);
    }

    /// Returns the last line of rank 0's node with this prefix; empty if no node printed one.
    [[nodiscard]] std::string said(const std::string& prefix) const {
        std::string found;
        for (const Process* node : nodes) {
            std::istringstream lines(node->text());
            for (std::string line; std::getline(lines, line);) {
                if (line.starts_with(prefix)) {
                    found = line;
                }
            }
        }
        return found;
    }

    /// Waits for the end of a job that succeeds; its parameters line.
    std::string finish() {
        for (Process* node : nodes) {
            const int code = node->wait_exit();
            INFO(node->text());
            REQUIRE(code == 0);
        }
        const std::string parameters = said("parameters ");
        REQUIRE(parameters.size() == std::string("parameters ").size() + 16);
        return parameters;
    }

    std::vector<Process*> nodes;

private:
    Cluster& cluster_;
    const Shape shape_;
    const std::string checkpoint_dir_;
    const FreePort port_;
};

std::vector<pid_t> children_of(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", pid));
    std::vector<pid_t> children;
    for (pid_t child = 0; file >> child;) {
        children.push_back(child);
    }
    return children;
}

/// Whether this process has not exited and runs the program.
bool trains(pid_t pid) {
    std::error_code gone;
    const std::filesystem::path exe =
        std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), gone);
    return exe.filename() == "train_digits";
}

/// Living workers of a ddprun: grandchildren that run the program.
std::vector<pid_t> workers_of(pid_t ddprun) {
    std::vector<pid_t> workers;
    for (const pid_t keeper : children_of(ddprun)) {
        for (const pid_t worker : children_of(keeper)) {
            if (trains(worker)) {
                workers.push_back(worker);
            }
        }
    }
    return workers;
}

/// Stops a worker, which cannot finish then; false if it has exited.
bool stop(pid_t worker) {
    return kill(worker, SIGSTOP) == 0 && trains(worker);
}

/// Lets so much time pass while all outputs are read.
void let_pass(Cluster& cluster, std::chrono::milliseconds time) {
    StartOptions options;
    options.argv = {"/bin/sleep", fmt::format("{:.3f}", static_cast<double>(time.count()) / 1e3)};
    REQUIRE(cluster.start(options).wait_exit() == 0);
}

template <typename T>
T& one_of(std::vector<T>& all, Rng& rng) {
    return all[rng.below(all.size())];
}

/// Kills a random worker of a one-node job, or a random node that is then replaced; false when
/// there was nothing to kill any more or yet.
bool kill_something(Job& job, Rng& rng) {
    Process*& node = one_of(job.nodes, rng);
    if (!node->is_running()) {
        return false;
    }
    std::vector<pid_t> workers = workers_of(node->pid());
    if (workers.empty()) {
        return false;
    }
    if (job.nodes.size() == 1) {
        return kill(one_of(workers, rng), SIGKILL) == 0;
    }
    // A node whose workers all finish before it dies needs no other in its place.
    if (!stop(workers[0])) {
        return false;
    }
    node->signal(SIGKILL);
    CHECK(node->wait_exit() == -SIGKILL);
    node = &job.start_node();
    return true;
}

int kills_wanted() {
    const char* const text = std::getenv("DDPRUN_TRAIN_KILLS");
    return text == nullptr ? 20 : std::atoi(text);
}

struct Undisturbed {
    std::string parameters;
    std::chrono::milliseconds duration{0};
};

Undisturbed run_undisturbed(Shape shape) {
    Cluster cluster;
    const auto started = std::chrono::steady_clock::now();
    Job job(cluster, shape, cluster.dir() / "checkpoints");
    Undisturbed result;
    result.parameters = job.finish();
    result.duration = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - started);
    cluster.wait_all_gone();
    return result;
}

}  // namespace

TEST_CASE("training gives the same parameters whatever is killed in between") {
    const Shape shape = GENERATE(Shape{1, 2}, Shape{1, 4}, Shape{2, 1}, Shape{2, 2});
    const std::uint64_t seed = random_seed();
    INFO(fmt::format("{} nodes of {} workers, seed {:#x}", shape.nodes, shape.slots, seed));
    Rng rng(seed);
    const Undisturbed expected = run_undisturbed(shape);
    REQUIRE(run_undisturbed(shape).parameters == expected.parameters);

    constexpr int kShapes = 4;
    int kills = 0;
    int resumed = 0;
    // A moment at which nothing runs is another try, and tries are bounded.
    for (int tries = 0; kills < (kills_wanted() + kShapes - 1) / kShapes; ++tries) {
        REQUIRE(tries < 10 * kills_wanted() + 40);
        Cluster cluster;
        Job job(cluster, shape, cluster.dir() / "checkpoints");
        let_pass(cluster, std::chrono::milliseconds(
                              rng.below(static_cast<std::uint64_t>(expected.duration.count()))));
        kills += kill_something(job, rng) ? 1 : 0;
        CHECK(job.finish() == expected.parameters);
        resumed += job.said("resumed from ").empty() ? 0 : 1;
        cluster.wait_all_gone();
    }
    WARN(fmt::format("{} x {} workers: {} kills, {} of them resumed from a checkpoint", shape.nodes,
                     shape.slots, kills, resumed));
}

TEST_CASE("a training that is asked to leave saves at once and goes on bit for bit") {
    const Shape shape = GENERATE(Shape{1, 2}, Shape{2, 2});
    const Undisturbed expected = run_undisturbed(shape);
    Cluster cluster;
    const std::string checkpoint_dir = cluster.dir() / "checkpoints";
    Job job(cluster, shape, checkpoint_dir);
    cluster.wait_until("a first step", [&] { return !job.said("first step").empty(); });
    job.nodes.back()->signal(SIGTERM);
    CHECK(job.nodes.back()->wait_exit() == 128 + SIGTERM);
    for (Process* node : job.nodes) {
        if (node->is_running()) {
            // The others wait for a node in its place; they are asked to go, too.
            cluster.wait_until("the save", [&] { return !job.said("asked to leave").empty(); });
            node->signal(SIGTERM);
            CHECK(node->wait_exit() == 128 + SIGTERM);
        }
    }
    CHECK(job.said("asked to leave: saving") != "");
    cluster.wait_all_gone();
    const std::vector<std::string> saved = list_folder(checkpoint_dir);
    REQUIRE_FALSE(saved.empty());

    Job again(cluster, shape, checkpoint_dir);
    CHECK(again.finish() == expected.parameters);
    CHECK(again.said("resumed from step ") != "");
    cluster.wait_all_gone();
}

TEST_CASE("a training grows by saving where it is and going on with more workers") {
    Cluster cluster;
    // Epochs that last, so that the second node comes in the middle.
    const Shape shape{1, 1, "1:2", {"--min-epoch-seconds", "0.3"}};
    Job job(cluster, shape, cluster.dir() / "checkpoints");
    job.nodes[0]->wait_for_line("^first step");
    job.nodes.push_back(&job.start_node());
    CHECK(job.finish().size() == 27);
    Process& first = *job.nodes[0];
    CHECK(first.count_lines("^training on 1 worker,") == 1);
    CHECK(first.count_lines("^asked to leave: saving$") == 1);
    CHECK(first.count_lines("^resumed from step ") == 1);
    CHECK(first.count_lines("^training on 2 workers,") == 1);
    CHECK(first.count_lines(fmt::format("^epoch {}/{}: ", kEpochs, kEpochs)) == 1);
    cluster.wait_all_gone();
}
