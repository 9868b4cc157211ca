#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace fake_gpu {

/// NCCL carries operations of streams and its own talk between hosts apart.
enum class Channel { Streams, Host };
constexpr int kChannels = 2;
constexpr int kMostRanks = 16;
constexpr std::size_t kRingBytes = 64 << 10;
constexpr std::size_t kNodeBytes = 64;
constexpr std::size_t kMostOperationKinds = 16;

/// Bytes from one rank to another: one writer, one reader.
struct Ring {
    std::atomic<std::uint64_t> written;
    std::atomic<std::uint64_t> read;
    std::array<char, kRingBytes> bytes;
};

/// A word that changes when its owner should look again; in memory that processes share.
using Bell = std::atomic<std::uint32_t>;
void ring_bell(Bell& bell);
/// Waits until the bell is no longer at `heard`, or the time is over.
void wait_for_bell(Bell& bell, std::uint32_t heard, std::chrono::milliseconds most);

struct Member {
    std::atomic<int> pid;
    unsigned pci_bus;
    std::array<char, kNodeBytes> node;
    Bell bell;
    std::array<std::atomic<std::uint64_t>, kMostOperationKinds> launched;  ///< by OperationKind
};

/// The start of the memory that the ranks of a communicator share; the rings follow.
struct Meeting {
    std::atomic<int> arrived;  ///< ranks whose Member is filled in
    std::atomic<int> mapped;   ///< ranks that need its name no longer
    std::array<Member, kMostRanks> members;

    [[nodiscard]] static std::size_t bytes(int ranks) {
        const auto count = static_cast<std::size_t>(ranks);
        return sizeof(Meeting) + sizeof(Ring) * kChannels * count * count;
    }
    [[nodiscard]] Ring& ring(Channel channel, int ranks, int from, int to) {
        auto* const rings = reinterpret_cast<Ring*>(this + 1);
        return rings[(static_cast<int>(channel) * ranks + from) * ranks + to];
    }
};

}  // namespace fake_gpu
