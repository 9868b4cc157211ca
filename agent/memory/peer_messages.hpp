#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/memory/checkpoint_shelf.hpp"
#include "base/result.hpp"
#include "worker_runtime/memory/protocol.hpp"

/// The bodies of the frames between the ddprun-memory programs of two nodes: a letter for the kind,
/// numbers of 8 bytes, and a text. Both ends send all of them.
namespace ddprun::agent {

/// "I have these files, copy them." Answered by one PeerDone with the same number.
struct PeerOffer {
    std::uint64_t number = 0;  ///< of this offer, on this connection
    Rank rank;                 ///< of the worker that has written them
    StepKey key;
    std::vector<worker::MemoryFile> files;
};

struct PeerDone {
    std::uint64_t number = 0;
    std::string fault;  ///< empty: copied
};

/// Asks for a part of a file. Answered, in the order of asking, by PeerPiece or PeerMissing.
struct PeerGet {
    StepKey key;
    std::string name;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

struct PeerPiece {
    std::string_view bytes;  ///< of the body
};

struct PeerMissing {
    std::string why;
};

using PeerMessage = std::variant<PeerOffer, PeerDone, PeerGet, PeerPiece, PeerMissing>;

/// The beginning of a PeerPiece; its bytes are appended.
inline constexpr std::string_view kPieceBegins = "P";

[[nodiscard]] std::string encode(const PeerOffer& offer);
[[nodiscard]] std::string encode(const PeerDone& done);
[[nodiscard]] std::string encode(const PeerGet& get);
[[nodiscard]] std::string encode(const PeerMissing& missing);

/// Strict, and never throws.
[[nodiscard]] Result<PeerMessage> decode_peer_message(std::string_view body);

}  // namespace ddprun::agent
