#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/helpers/memory_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/memory_client.hpp"

namespace ddprun::test {

constexpr std::uint64_t kNodeBytesMax = 4 << 20;

/// One program, as ddprun has it.
struct Node {
    explicit Node(agent::MemoryOptions options = {.bytes_max = kNodeBytesMax},
                  bool has_partners = false)
        : program(io, std::move(options), JobId("job"), has_partners,
                  {.say = [this](const std::string& line) { lines.push_back(line); },
                   .on_child = [this](int child) { pid = child; }}) {
        begin();
    }

    void begin() {
        socket = program.begin_generation("127.0.0.1");
        REQUIRE_FALSE(socket.empty());
    }
    /// Returns when ddprun has heard of the program's end.
    void kill() {
        REQUIRE(::kill(pid, SIGKILL) == 0);
        while (lines.empty()) {
            io.run_one();
        }
    }

    boost::asio::io_context io;
    std::vector<std::string> lines;
    int pid = 0;
    agent::MemoryProgram program;
    std::string socket;
};

struct Client : MemoryClient {
    explicit Client(const Node& node) : MemoryClient(node.socket) {}
    Client(const Node& node, int rank, std::uint64_t generation = 1)
        : MemoryClient(node.socket, rank, generation) {}
};

inline agent::MemoryOptions with_secret(unsigned char byte) {
    rdzv::JobSecret::Bytes bytes{};
    bytes.fill(byte);
    return {.bytes_max = std::uint64_t{64} << 20, .secret = rdzv::JobSecret(bytes, "a file")};
}

/// More than a window of pieces, and no whole number of them.
inline std::string large_content() {
    std::string content((std::size_t{5} << 20) + 4321, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) {
        content[i] = static_cast<char>(i * 2654435761U >> 13);
    }
    return content;
}

}  // namespace ddprun::test
