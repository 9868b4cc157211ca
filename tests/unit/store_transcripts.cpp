// Replays the recorded exchanges against the pure core: what PyTorch's store answered, ours
// answers, but for the differences listed in store_transcripts.hpp.

#include "tests/support/store_transcripts.hpp"

#include <string>
#include <vector>

#include "rendezvous/store/core/store_core.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv::store_test {

namespace {

struct Connection {
    explicit Connection(const Limits& limits) : splitter(limits) {}

    RequestSplitter splitter;
    std::string arrived;
    std::string received;
    std::string expected;
    bool is_closed = false;
    bool is_expected_closed = false;
};

class Replay {
public:
    explicit Replay(std::size_t connections) : core_(limits_) {
        connections_.assign(connections, Connection(limits_));
    }

    /// The first difference, or nothing.
    std::string run(const Transcript& transcript, std::size_t piece_bytes) {
        for (std::size_t index = 0; index < transcript.steps.size(); ++index) {
            const TranscriptStep& step = transcript.steps[index];
            Connection& connection = connections_[step.connection];
            if (step.is_from_client) {
                // All that the recording has had to this point must have come.
                if (std::string difference = compare(false, transcript); !difference.empty()) {
                    return difference + " before step " + std::to_string(index);
                }
                for (std::size_t at = 0; at < step.bytes.size(); at += piece_bytes) {
                    feed(step.connection, step.bytes.substr(at, piece_bytes));
                }
            } else {
                connection.expected += step.bytes;
                connection.is_expected_closed |= step.is_close;
            }
        }
        return compare(true, transcript);
    }

private:
    void feed(std::size_t index, const std::string& bytes) {
        Connection& connection = connections_[index];
        connection.arrived += bytes;
        while (!connection.is_closed) {
            const Result<std::size_t> size = connection.splitter.split(connection.arrived);
            if (size && *size == 0) {
                return;
            }
            const StoreClient client(static_cast<std::uint32_t>(index));
            StoreReplies replies;
            if (!size || !core_.handle(client, connection.arrived.substr(0, *size), replies)) {
                connection.is_closed = true;
                core_.disconnected(client, replies);
            }
            std::size_t at = 0;
            for (const StoreReplies::Piece& piece : replies.pieces()) {
                connections_[piece.client.value()].received +=
                    replies.bytes().substr(at, piece.size);
                at += piece.size;
            }
            connection.arrived.erase(0, size ? *size : 0);
        }
    }

    std::string compare(bool is_end, const Transcript& transcript) const {
        for (const Connection& connection : connections_) {
            const bool is_same = transcript.is_unordered
                                     ? sorted(connection.received) == sorted(connection.expected)
                                     : connection.received == connection.expected;
            if (!is_same) {
                return "other bytes";
            }
            // PyTorch's server sometimes closes only when more bytes come.
            if (is_end ? connection.is_closed != connection.is_expected_closed
                       : connection.is_expected_closed && !connection.is_closed) {
                return connection.is_closed ? "closed" : "not closed";
            }
        }
        return {};
    }

    Limits limits_;
    StoreCore core_;
    std::vector<Connection> connections_;
};

}  // namespace

TEST_CASE("the core answers as PyTorch's store did, however the bytes are cut") {
    const std::size_t piece_bytes = GENERATE(1U, 7U, 1U << 20);
    const std::vector<Transcript> transcripts = load_transcripts();
    REQUIRE(transcripts.size() == 100);
    std::size_t different = 0;
    for (const Transcript& transcript : transcripts) {
        const std::string difference = Replay(transcript.connections).run(transcript, piece_bytes);
        CAPTURE(transcript.name, piece_bytes, difference);
        if (kDeliberateDifferences.contains(transcript.name)) {
            CHECK_FALSE(difference.empty());
            ++different;
        } else {
            CHECK(difference.empty());
        }
    }
    CHECK(different == kDeliberateDifferences.size());
}

}  // namespace ddprun::rdzv::store_test
