// ddprun-readahead: reads the newest checkpoint at each place, so that the kernel has it in memory.
// A program of its own, so that a file system that never answers holds up no other program: its
// parent kills it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/read_ahead/files_ahead.hpp"
#include "base/os/read_memory_room.hpp"
#include "base/read_ahead_limits.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

int main(int argc, char** argv) {
    using namespace ddprun;
    const std::vector<std::string> places(argv + 1, argv + argc);
    const ReadAheadLimits limits;
    const std::optional<MemoryRoom> room = read_memory_room();
    if (!room) {
        return kExitSuccess;
    }
    // More than this would push out what was read first, or what others need.
    constexpr std::uint64_t kAll = 100;
    std::uint64_t bytes_left =
        room->free / kAll * static_cast<std::uint64_t>(limits.read_ahead_memory_part);
    for (const std::string& place : places) {
        for (const std::string& file : agent::files_ahead(place, limits)) {
            bytes_left -= agent::read_ahead(file, bytes_left, limits);
        }
    }
    return kExitSuccess;
}
