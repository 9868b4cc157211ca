// One rank of `scripts/bench.sh checkpoint --only memory`, under ddprun --memory-checkpoints:
// `memory_rank MEBIBYTES FOLDER ROUNDS`. Saves and resumes, through the nodes' memory and through
// the disk in turn, and says of each measure "time NAME SECONDS", once per rank and round.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "base/os/unique_fd.hpp"
#include "tests/bench/checkpoint_training.hpp"
#include "tests/support/rank.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::checked;
using ddprun::Checkpoints;
using ddprun::ProcessGroup;
using ddprun::UniqueFd;
using ddprun::Worker;
using ddprun::test::Clock;
using ddprun::test::Pages;
using ddprun::test::seconds_since;
using ddprun::test::Training;

constexpr std::int64_t kNever = 1'000'000'000;
constexpr std::size_t kSocketBytes = 512 << 10;  // of one piece of a copy, too

/// The floor of a copy to another node: `size` bytes through a TCP connection of this machine.
class Loopback {
public:
    Loopback() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        auto* const generic = static_cast<sockaddr*>(static_cast<void*>(&address));
        bool is_made = ::bind(listener_.get(), generic, size) == 0 &&
                       ::listen(listener_.get(), 1) == 0 &&
                       ::getsockname(listener_.get(), generic, &size) == 0;
        from_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        is_made = is_made && ::connect(from_.get(), generic, size) == 0;
        to_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!is_made || !to_.is_open()) {
            throw std::runtime_error("no connection to itself");
        }
    }

    void pass(std::size_t size) {
        std::thread reader([&] {
            std::vector<char> bytes(kSocketBytes);
            for (std::size_t left = size; left > 0;) {
                const ssize_t got = ::recv(to_.get(), bytes.data(), bytes.size(), 0);
                if (got <= 0) {
                    std::abort();
                }
                left -= static_cast<std::size_t>(got);
            }
        });
        const std::vector<char> bytes(kSocketBytes);
        for (std::size_t left = size; left > 0;) {
            const ssize_t sent = ::send(from_.get(), bytes.data(), std::min(bytes.size(), left), 0);
            if (sent <= 0) {
                std::abort();
            }
            left -= static_cast<std::size_t>(sent);
        }
        reader.join();
    }

private:
    UniqueFd listener_;
    UniqueFd from_;
    UniqueFd to_;
};

void say_time(const std::string& name, double seconds) {
    ddprun::test::say(fmt::format("time {} {}", name, seconds));
}

void save(const std::string& name, Checkpoints& checkpoints, Training& training) {
    const Clock::time_point begin = Clock::now();
    checked(checkpoints.save_async(++training.step, training.state));
    checkpoints.before_step();
    say_time(name + "-stall", seconds_since(begin));
    checked(checkpoints.wait());
    say_time(name, seconds_since(begin));
}

void resume(const std::string& name, Checkpoints& checkpoints, Training& training) {
    const torch::Tensor first = training.network->parameters().front().detach();
    first.zero_();
    const Clock::time_point begin = Clock::now();
    const bool is_resumed = checked(checkpoints.resume(training.state)).has_value();
    say_time(name, seconds_since(begin));
    if (!is_resumed || first.count_nonzero().item<std::int64_t>() == 0) {
        throw std::runtime_error("what was saved does not come back");
    }
}

int measure(Worker& worker, std::size_t bytes, const std::string& folder, int rounds) {
    ProcessGroup group = checked(worker.process_group());
    Training training(static_cast<std::int64_t>(bytes));
    const std::size_t share = bytes / static_cast<std::size_t>(worker.world_size());
    const Pages whole(bytes);
    const Pages part(share);
    Loopback loopback;
    Checkpoints kept(folder + "/kept", worker, group, {.disk_every = kNever});
    (void)checked(kept.resume(training.state));  // the first one has the memory
    Checkpoints disk(folder + "/disk", worker, group, {.keep = 2});
    const auto in_turn = [&](const std::function<void()>& act) {
        checked(group.barrier());
        act();
        checked(group.barrier());
        ::sync();  // Work that is left to the disk must not slow the next measure.
    };
    for (int round = 0; round < rounds; ++round) {
        in_turn([&] { say_time("copy-share", part.copy(training).stall); });
        in_turn([&] {
            const Clock::time_point begin = Clock::now();
            loopback.pass(share);
            say_time("socket-share", seconds_since(begin));
        });
        in_turn([&] { save("save-memory", kept, training); });
        in_turn([&] { save("save-disk", disk, training); });
    }
    for (int round = 0; round < rounds; ++round) {
        in_turn([&] { say_time("copy-whole", whole.copy(training).stall); });
        in_turn([&] { resume("resume-memory", kept, training); });
        in_turn([&] { resume("resume-disk", disk, training); });
    }
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    return ddprun::run(argc, argv, [&](Worker& worker) {
        if (argc != 4) {
            throw std::runtime_error("usage: memory_rank MEBIBYTES FOLDER ROUNDS");
        }
        return measure(worker, std::stoull(argv[1]) << 20, argv[2], std::stoi(argv[3]));
    });
}
