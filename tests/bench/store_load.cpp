// Load on a store, ours or PyTorch's, over loopback: connects, barriers, requests, idle clients,
// big values. store.py starts the servers and this; the result is one JSON object on standard
// output.

#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/os/open_files.hpp"
#include "tests/bench/store_load_crowd.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::test {
namespace {

namespace wire = rdzv::store_test;
using nlohmann::json;
using rdzv::StoreOpcode;
using Clock = StoreCrowd::Clock;

constexpr std::size_t kNumberBytes = 8;
constexpr std::size_t kByte = 1;
constexpr std::size_t kValueBytes = std::size_t{8} << 20;

struct Flags {
    StoreTarget target;
    int server_pid = 0;
    int relays_pid = 0;  ///< of the process with all relays; 0: there are none
    std::size_t clients = 1;
    std::size_t rounds = 1;
    std::size_t operations = 100000;
};

double seconds(Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
}

/// User and system time of all threads of a process so far.
double cpu_seconds(int pid) {
    clockid_t clock{};
    DDP_CHECK(::clock_getcpuclockid(pid, &clock) == 0, pid);
    timespec now{};
    DDP_CHECK(::clock_gettime(clock, &now) == 0, errno);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

/// From /proc/PID/smaps_rollup, in KiB: Rss, Pss, Pss_Anon and what else there is.
json memory_of(int pid) {
    json memory;
    std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
    std::string line;
    std::getline(file, line);  // The range of addresses.
    std::string name;
    long value = 0;
    std::string unit;
    while (file >> name >> value >> unit) {
        memory[name.substr(0, name.size() - 1) + "_kib"] = value;
    }
    return memory;
}

/// Wall time, and CPU time of server, relays and generator, of a stretch of operations.
class Stretch {
public:
    explicit Stretch(const Flags& flags)
        : pid_(flags.server_pid),
          relays_pid_(flags.relays_pid == 0 ? ::getpid() : flags.relays_pid),
          cpu_(cpu_seconds(pid_)),
          relays_cpu_(cpu_seconds(relays_pid_)),
          own_cpu_(cpu_seconds(::getpid())) {}

    [[nodiscard]] json end(std::size_t operations) const {
        const double wall = seconds(Clock::now() - begin_);
        const auto count = static_cast<double>(operations);
        return {
            {"wall_ms", wall * 1e3},
            {"operations", operations},
            {"operations_per_s", count / wall},
            {"server_cpu_ms", (cpu_seconds(pid_) - cpu_) * 1e3},
            {"relays_cpu_ms", (cpu_seconds(relays_pid_) - relays_cpu_) * 1e3},
            {"server_cpu_us_per_operation", (cpu_seconds(pid_) - cpu_) * 1e6 / count},
            {"generator_cpu_us_per_operation", (cpu_seconds(::getpid()) - own_cpu_) * 1e6 / count}};
    }

private:
    int pid_;
    int relays_pid_;  ///< ours, where there are none
    double cpu_;
    double relays_cpu_;
    double own_cpu_;
    Clock::time_point begin_ = Clock::now();
};

void add_percentiles(json& result, std::vector<double> us) {
    if (us.empty()) {
        return;
    }
    std::sort(us.begin(), us.end());
    const auto rank = [&](double share) {
        const double place = std::ceil(share * static_cast<double>(us.size()));
        return us[static_cast<std::size_t>(std::max(place, 1.0)) - 1];
    };
    result["p50_us"] = rank(0.5);
    result["p99_us"] = rank(0.99);
    result["max_us"] = us.back();
}

/// All clients connect at once, until each is greeted.
json connects(const Flags& flags) {
    StoreCrowd crowd(flags.target, flags.clients);
    const Stretch stretch(flags);
    crowd.connect_all();
    json result = stretch.end(2 * flags.clients);
    result["lost"] = crowd.lost();
    add_percentiles(result, crowd.greeting_us());
    return result;
}

/// Each client adds 1 and then waits for the last one's key: torchelastic's barrier. The first
/// round is not counted. A relay's last client shows by its number that all have come.
json barrier(const Flags& flags) {
    StoreCrowd crowd(flags.target, flags.clients);
    crowd.connect_all();
    json rounds = json::array();
    const std::uint32_t each = std::max(flags.target.relayed_clients, 1U);
    const bool is_relays = flags.target.relayed_clients > 0;
    const auto all = static_cast<std::int64_t>(flags.clients * each);
    const auto asked = [&](const std::string& request) {
        return is_relays ? relayed(each, request) : request;
    };
    const std::size_t add_bytes = is_relays ? each * relayed_bytes(1, kNumberBytes) : kNumberBytes;
    const std::size_t wait_bytes = is_relays ? relayed_bytes(each, kByte) : kByte;
    for (std::size_t round = 0; round <= flags.rounds; ++round) {
        const std::string prefix = "/barrier/" + std::to_string(round);
        const std::string add =
            asked(wire::of_number(StoreOpcode::Add, prefix + "/num_members", 1));
        const std::string wait = asked(wire::wait({prefix + "/last_member"}));
        const std::string set = wire::set(prefix + "/last_member", "<val_ignored>");
        const std::string last = is_relays ? relayed(1, set) : set;
        std::vector<bool> waits(crowd.size());
        const Stretch stretch(flags);
        for (std::size_t client = 0; client < crowd.size(); ++client) {
            crowd.set_now();
            crowd.ask(client, add, add_bytes);
        }
        std::vector<double> us;
        us.reserve(crowd.size());
        crowd.run([&](std::size_t client, std::string_view reply) {
            if (waits[client]) {
                us.push_back(seconds(crowd.now() - crowd.asked_at(client)) * 1e6);
                return;
            }
            if (reply.ends_with(wire::number(all))) {
                crowd.ask(client, last, 0);
            }
            waits[client] = true;
            crowd.ask(client, wait, wait_bytes);
        });
        json result = stretch.end(2 * crowd.size() * each);
        result["lost"] = crowd.lost();
        add_percentiles(result, std::move(us));
        if (round > 0) {
            rounds.push_back(std::move(result));
        }
    }
    return rounds;
}

/// Every client asks, and asks again when it is answered: GET and ADD in turn.
json requests(const Flags& flags) {
    StoreCrowd crowd(flags.target, flags.clients);
    crowd.connect_all();
    const std::string value(64, 'v');
    std::vector<std::array<std::string, 2>> asked;
    for (std::size_t client = 0; client < crowd.size(); ++client) {
        const std::string key = "/requests/" + std::to_string(client);
        crowd.ask(client, wire::set(key, value), 0);
        asked.push_back({wire::get(key), wire::of_number(StoreOpcode::Add, key + "/count", 1)});
    }
    std::vector<std::size_t> turns(crowd.size());
    const auto ask = [&](std::size_t client) {
        const bool is_get = ++turns[client] % 2 == 1;
        crowd.ask(client, asked[client][is_get ? 0 : 1],
                  is_get ? kNumberBytes + value.size() : kNumberBytes);
    };
    const auto run = [&](std::size_t operations) {
        std::vector<double> us;
        us.reserve(operations);
        std::size_t left = operations - crowd.size();
        const Stretch stretch(flags);
        for (std::size_t client = 0; client < crowd.size(); ++client) {
            crowd.set_now();
            ask(client);
        }
        crowd.run([&](std::size_t client, std::string_view) {
            us.push_back(seconds(crowd.now() - crowd.asked_at(client)) * 1e6);
            if (left > 0) {
                --left;
                ask(client);
            }
        });
        json result = stretch.end(operations);
        add_percentiles(result, std::move(us));
        return result;
    };
    static_cast<void>(run(crowd.size() * 20));
    return run(flags.operations);
}

/// The server's memory with all clients connected and greeted.
json idle(const Flags& flags) {
    const json before = memory_of(flags.server_pid);
    StoreCrowd crowd(flags.target, flags.clients);
    crowd.connect_all();
    return {{"lost", crowd.lost()}, {"before", before}, {"with", memory_of(flags.server_pid)}};
}

void send_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        DDP_CHECK(count > 0, errno);
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
}

void receive_all(int fd, char* to, std::size_t size) {
    while (size > 0) {
        const ssize_t count = ::recv(fd, to, size, 0);
        DDP_CHECK(count > 0, count, errno);
        to += count;
        size -= static_cast<std::size_t>(count);
    }
}

json mib_per_second(const std::vector<double>& taken_s) {
    json rates = json::array();
    for (const double taken : taken_s) {
        rates.push_back(static_cast<double>(kValueBytes) / (1 << 20) / taken);
    }
    return rates;
}

/// One client stores the largest value and gets it again; SET has no answer, so PING follows it.
json values(const Flags& flags) {
    const UniqueFd fd = connect_to_store(flags.target);
    std::string into(kValueBytes + kNumberBytes, '\0');
    send_all(fd.get(), store_hello());
    receive_all(fd.get(), into.data(), kHelloReplyBytes);
    const std::string set = wire::set("/big", std::string(kValueBytes, 'v')) + wire::ping(1);
    const std::string get = wire::get("/big");
    std::vector<double> set_s;
    std::vector<double> get_s;
    for (std::size_t round = 0; round <= flags.rounds; ++round) {
        const Clock::time_point begin = Clock::now();
        send_all(fd.get(), set);
        receive_all(fd.get(), into.data(), kHelloReplyBytes);
        const Clock::time_point between = Clock::now();
        send_all(fd.get(), get);
        receive_all(fd.get(), into.data(), into.size());
        if (round > 0) {
            set_s.push_back(seconds(between - begin));
            get_s.push_back(seconds(Clock::now() - between));
        }
    }
    return {{"set_mib_per_s", mib_per_second(set_s)}, {"get_mib_per_s", mib_per_second(get_s)}};
}

/// The baseline for values(): a process that copies as many bytes from a socket into memory and
/// from memory into the socket, and does nothing else.
json plain_values(const Flags& flags) {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = static_cast<sockaddr*>(static_cast<void*>(&address));
    DDP_CHECK(::bind(listener.get(), generic, size) == 0 && ::listen(listener.get(), 1) == 0 &&
                  ::getsockname(listener.get(), generic, &size) == 0,
              errno);
    const UniqueFd fd = connect_to_store({.ports = {ntohs(address.sin_port)}});
    const UniqueFd other(::accept(listener.get(), nullptr, nullptr));
    std::string memory(kValueBytes, 'v');
    const pid_t child = ::fork();
    DDP_CHECK(child >= 0, errno);
    if (child == 0) {
        for (std::size_t round = 0; round <= flags.rounds; ++round) {
            receive_all(other.get(), memory.data(), memory.size());
            send_all(other.get(), "1");
            receive_all(other.get(), memory.data(), 1);
            send_all(other.get(), memory);
        }
        ::_exit(0);
    }
    std::vector<double> there_s;
    std::vector<double> back_s;
    for (std::size_t round = 0; round <= flags.rounds; ++round) {
        const Clock::time_point begin = Clock::now();
        send_all(fd.get(), memory);
        receive_all(fd.get(), memory.data(), 1);
        const Clock::time_point between = Clock::now();
        send_all(fd.get(), "1");
        receive_all(fd.get(), memory.data(), memory.size());
        if (round > 0) {
            there_s.push_back(seconds(between - begin));
            back_s.push_back(seconds(Clock::now() - between));
        }
    }
    DDP_CHECK(::waitpid(child, nullptr, 0) == child, errno);
    return {{"set_mib_per_s", mib_per_second(there_s)}, {"get_mib_per_s", mib_per_second(back_s)}};
}

}  // namespace
}  // namespace ddprun::test

int main(int argc, char** argv) {
    using namespace ddprun::test;
    Flags flags;
    CLI::App app{"Load on a store, for tests/bench/store.py"};
    app.add_option("--ports", flags.target.ports)->delimiter(',');
    app.add_option("--source-addresses", flags.target.source_addresses);
    app.add_option("--server-pid", flags.server_pid);
    app.add_option("--relays-pid", flags.relays_pid);
    app.add_option("--clients", flags.clients);
    app.add_option("--rounds", flags.rounds);
    app.add_option("--operations", flags.operations);
    app.add_option("--relayed-clients", flags.target.relayed_clients,
                   "that each connection of a barrier stands for");
    app.fallthrough();  // Options may stand behind the measure.
    app.require_subcommand(1);
    json result;
    const auto measure = [&](const char* name, json (*function)(const Flags&)) {
        app.add_subcommand(name)->callback([&, function] {
            ddprun::raise_open_files();
            result = function(flags);
        });
    };
    measure("connects", connects);
    measure("barrier", barrier);
    measure("requests", requests);
    measure("idle", idle);
    measure("values", values);
    measure("plain-values", plain_values);
    CLI11_PARSE(app, argc, argv);
    fmt::print("{}\n", result.dump());
    return 0;
}
