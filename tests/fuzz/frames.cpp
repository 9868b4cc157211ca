// Goal: a connection's frames do not depend on how the network cuts them, no more than one is ever
// kept, and with keys nothing passes that was not sent. Method: one reader gets a stream whole, the
// other in pieces; the stream is arbitrary, or made by a FrameWriter and damaged in one byte.
#include "rendezvous/wire/frames.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "tests/fuzz/choices.hpp"

namespace ddprun::rdzv {

namespace {

struct Outcome {
    std::vector<std::string> bodies;
    std::optional<ErrorCode> failed;
    std::size_t kept = 0;

    bool operator==(const Outcome&) const = default;
};

/// `sizes` says how the stream is cut; what is left comes in one piece.
Outcome read(std::string_view stream, std::string_view sizes, const std::optional<Mac>& key,
             std::size_t body_bytes_max) {
    FrameReader reader(key, body_bytes_max);
    const std::size_t mac_bytes = key ? kFrameMacBytes : 0;
    Outcome outcome;
    std::size_t fed = 0;
    std::size_t delivered = 0;
    while (fed < stream.size() && !outcome.failed) {
        std::size_t size = stream.size() - fed;
        if (!sizes.empty()) {
            size = std::min<std::size_t>(size, static_cast<unsigned char>(sizes.front()) % 32);
            sizes.remove_prefix(1);
        }
        // A copy of its own, so that the address sanitizer sees a read of bytes that were not fed.
        reader.feed(std::string(stream.substr(fed, size)));
        fed += size;
        while (true) {
            const Result<std::optional<std::string_view>> body = reader.next();
            if (!body) {
                outcome.failed = body.error().code;
                DDP_CHECK(!reader.next(), fed);
                break;
            }
            if (!*body) {
                DDP_CHECK(reader.kept_bytes() < kFrameLengthBytes + body_bytes_max + mac_bytes,
                          reader.kept_bytes());
                break;
            }
            DDP_CHECK((*body)->size() <= body_bytes_max, (*body)->size());
            outcome.bodies.emplace_back(**body);
            delivered += kFrameLengthBytes + (*body)->size() + mac_bytes;
        }
        DDP_CHECK(delivered + reader.kept_bytes() == fed, delivered, reader.kept_bytes(), fed);
    }
    outcome.kept = outcome.failed ? 0 : reader.kept_bytes();
    return outcome;
}

/// Frames of a writer, of which one byte may be changed or one frame be left out or sent twice.
void check_sent(fuzz::Choices& choices, const std::optional<Mac>& key, std::string_view sizes,
                std::size_t body_bytes_max) {
    FrameWriter writer(key);
    std::vector<std::string> bodies;
    std::vector<std::string> frames;
    const unsigned damage = choices.below(4);
    const unsigned where = choices.word();
    const auto change = static_cast<char>(1 + choices.below(255));
    while (!choices.is_empty() && frames.size() < 16) {
        bodies.emplace_back(choices.bytes(choices.byte() % (body_bytes_max + 1)));
        writer.append(bodies.back(), frames.emplace_back());
    }
    if (frames.empty()) {
        return;
    }
    const std::size_t which = where % frames.size();
    if (damage == 1) {
        std::string& frame = frames[which];
        char& byte = frame[where / frames.size() % frame.size()];
        byte = static_cast<char>(byte ^ change);
    } else if (damage == 2) {
        frames[which].clear();
    } else if (damage == 3) {
        frames[which] += std::string(frames[which]);
    }
    std::string stream;
    for (const std::string& frame : frames) {
        stream += frame;
    }
    const Outcome outcome = read(stream, sizes, key, body_bytes_max);
    DDP_CHECK(outcome == read(stream, {}, key, body_bytes_max), stream.size());
    if (damage == 0) {
        DDP_CHECK(outcome.bodies == bodies && !outcome.failed && outcome.kept == 0, bodies.size());
    } else if (key) {
        // The frames before the damage arrive. The frame that is sent twice passes once.
        bodies.resize(damage == 3 ? which + 1 : which);
        DDP_CHECK(outcome.bodies == bodies, outcome.bodies.size(), bodies.size(), damage);
    }
}

void run(fuzz::Choices& choices) {
    std::optional<Mac> key;
    if (choices.flag()) {
        key = sha256("a key");
    }
    const bool is_sent = choices.flag();
    const std::size_t body_bytes_max = choices.below(128);
    const std::string_view sizes = choices.bytes(choices.below(16));
    if (is_sent) {
        check_sent(choices, key, sizes, body_bytes_max);
        return;
    }
    const std::string_view stream = choices.rest();
    const Outcome whole = read(stream, {}, key, body_bytes_max);
    DDP_CHECK(whole == read(stream, sizes, key, body_bytes_max), stream.size());
    DDP_CHECK(!key || whole.bodies.empty(), whole.bodies.size());
}

}  // namespace

}  // namespace ddprun::rdzv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    ddprun::rdzv::run(choices);
    return 0;
}
