#pragma once

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "agent/process/worker_page.hpp"
#include "rendezvous/store/net/store_server.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::test {

/// A generation of `runtime_peer`s, or of another program of the tests, each a node of its own, as
/// far as it knows.
class Peers {
public:
    /// `asked`: the node of this rank is asked to stop before it starts.
    Peers(Cluster& cluster, int world_size, const std::vector<std::string>& scenario,
          std::uint64_t generation = 1, int asked = -1, const std::string& program = runtime_peer())
        : store_(Limits{}) {
        Result<rdzv::StoreSocket> socket = rdzv::listen_for_store("127.0.0.1", 0);
        REQUIRE(socket.has_value());
        const std::uint16_t port = socket->port;
        store_.serve(std::move(socket->fd), {});
        for (int rank = 0; rank < world_size; ++rank) {
            Result<std::unique_ptr<agent::WorkerPage>> page =
                agent::WorkerPage::create(Generation(generation), 1, Instant::max());
            REQUIRE(page.has_value());
            pages.push_back(std::move(*page));
            if (rank == asked) {
                pages.back()->ask_to_stop(SIGTERM, std::chrono::steady_clock::now() + kDeadline);
            }
            WorkerPlace place;
            place.job = JobId("runtime");
            place.node = NodeId("node");
            place.generation = Generation(generation);
            place.rank = Rank(rank);
            place.world_size = world_size;
            place.target_world_size = world_size;
            place.group_rank = rank;
            place.group_world_size = world_size;
            place.role_rank = rank;
            place.role_world_size = world_size;
            place.store = {"127.0.0.1", port};
            place.local_address = "127.0.0.2";  // one that no guess would find
            place.restart_count = 2;
            place.start_reason = generation == 1 ? "" : "rank 1 died";
            place.page = fmt::format("/proc/{}/fd/{}", getpid(), pages.back()->file());
            std::map<std::string, std::string> env;
            for (const auto& [key, value] : worker_environment(place)) {
                env[key] = value;
            }
            StartOptions options;
            options.argv = {program};
            for (std::string argument : scenario) {
                const std::size_t at = argument.find("{rank}");
                if (at != std::string::npos) {
                    argument.replace(at, 6, std::to_string(rank));
                }
                options.argv.push_back(std::move(argument));
            }
            options.env = env;
            options.name = "rank " + std::to_string(rank);
            ranks.push_back(&cluster.start(options));
        }
    }

    static std::string runtime_peer() { return DDPRUN_TESTS_DIR "/runtime_peer"; }

    void require_exits(int code) {
        // Any of them may report the first failure.
        std::string said;
        bool is_right = true;
        for (Process* rank : ranks) {
            is_right = rank->wait_exit() == code && is_right;
            said += rank->text();
        }
        INFO(said);
        REQUIRE(is_right);
    }

    /// The first line of each rank with `pattern`.
    std::vector<std::string> lines(const std::string& pattern) {
        std::vector<std::string> found;
        for (Process* rank : ranks) {
            found.push_back(rank->wait_for_line(pattern));
        }
        return found;
    }

    std::vector<Process*> ranks;
    std::vector<std::unique_ptr<agent::WorkerPage>> pages;

private:
    rdzv::StoreServer store_;
};

}  // namespace ddprun::test
