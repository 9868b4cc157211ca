// Goal: no peer gets through without the secret, whatever it sends, repeats or sends back; and both
// ends are told what is wrong. The two state machines are joined by hand.

#include <sstream>
#include <type_traits>

#include "base/rng.hpp"
#include "rendezvous/wire/frames.hpp"
#include "rendezvous/wire/handshake.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/result_text.hpp"

namespace ddprun::rdzv {
namespace {

JobSecret secret_of(unsigned char byte) {
    JobSecret::Bytes bytes{};
    bytes.fill(byte);
    return JobSecret(bytes, "/home/me/.config/ddprun/secret");
}

Nonce nonce_of(unsigned char byte) {
    Nonce nonce{};
    nonce.fill(byte);
    return nonce;
}

template <typename T>
concept Printable = requires(std::ostream& out, const T& value) {
    out << value;
};

// A secret cannot be printed by accident.
static_assert(!fmt::is_formattable<JobSecret>::value);
static_assert(!Printable<JobSecret>);
static_assert(Printable<std::string>);

const JobId kJob("llama");

TEST_CASE("both sides with the same secret agree on the keys of each direction") {
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    RendezvousHandshake rendezvous(secret_of(7), nonce_of(2));
    REQUIRE(agent.hello().size() == kHelloBytes);
    const RendezvousHandshake::Answer answer = rendezvous.answer(agent.hello());
    REQUIRE_FALSE(answer.refused);
    const Result<AgentHandshake::Finish> finish = agent.finish(answer.bytes, "h:1");
    REQUIRE(finish);
    const Result<SessionKeys> keys = rendezvous.finish(finish->proof);
    REQUIRE(keys);
    REQUIRE(keys->outgoing.has_value());
    REQUIRE(keys->outgoing == finish->keys.incoming);
    REQUIRE(keys->incoming == finish->keys.outgoing);
    REQUIRE(keys->incoming != keys->outgoing);
    REQUIRE(rendezvous.is_for(kJob));
    REQUIRE_FALSE(rendezvous.is_for(JobId("other")));
}

TEST_CASE("the bytes of a handshake are what its document says") {
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    REQUIRE(agent.hello().substr(0, 9) == std::string("DDPR\x01\x01"
                                                      "a\0\x01",
                                                      9));
    RendezvousHandshake rendezvous(secret_of(7), nonce_of(2));
    const std::string answer = rendezvous.answer(agent.hello()).bytes;
    REQUIRE(answer.substr(0, 9) == std::string("DDPR\x01\x01\0\0\x02", 9));
    std::string transcript = "ddprun rendezvous proof";
    transcript += '\0';
    transcript += agent.hello() + answer.substr(0, 40);
    REQUIRE(answer.substr(40) == view(MacKey(secret_of(7).reveal()).of({transcript})));
}

TEST_CASE("another secret is told to the agent with what to copy") {
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    RendezvousHandshake rendezvous(secret_of(8), nonce_of(2));
    const Result<AgentHandshake::Finish> finish =
        agent.finish(rendezvous.answer(agent.hello()).bytes, "head:29400");
    REQUIRE_FALSE(finish);
    REQUIRE(finish.error().code == ErrorCode::BadSecret);
    REQUIRE(finish.error().what ==
            "the secret of this node is not that of the rendezvous at head:29400; copy "
            "/home/me/.config/ddprun/secret from the node that started it, or pass --secret-file");
}

TEST_CASE("an agent that goes on without the secret is turned away") {
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    RendezvousHandshake rendezvous(secret_of(8), nonce_of(2));
    const RendezvousHandshake::Answer answer = rendezvous.answer(agent.hello());
    REQUIRE_FALSE(answer.refused);
    const Result<SessionKeys> zeros = rendezvous.finish(std::string(kProofBytes, '\0'));
    REQUIRE_FALSE(zeros);
    REQUIRE(zeros.error().code == ErrorCode::BadSecret);
    // Its own proof sent back.
    REQUIRE_FALSE(rendezvous.finish(answer.bytes.substr(40)));
}

TEST_CASE("--insecure works only when both sides say so") {
    const AgentHandshake insecure_agent(std::nullopt, kJob, nonce_of(1));
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    SECTION("both") {
        RendezvousHandshake rendezvous(std::nullopt, nonce_of(2));
        const Result<AgentHandshake::Finish> finish =
            insecure_agent.finish(rendezvous.answer(insecure_agent.hello()).bytes, "h:1");
        REQUIRE(finish);
        REQUIRE_FALSE(finish->keys.incoming);
        REQUIRE_FALSE(finish->keys.outgoing);
        const Result<SessionKeys> keys = rendezvous.finish(finish->proof);
        REQUIRE(keys);
        REQUIRE_FALSE(keys->incoming);
    }
    SECTION("only the agent") {
        RendezvousHandshake rendezvous(secret_of(7), nonce_of(2));
        const RendezvousHandshake::Answer answer = rendezvous.answer(insecure_agent.hello());
        REQUIRE(answer.refused);
        REQUIRE(answer.bytes.substr(40) == std::string(32, '\0'));
        const auto finish = insecure_agent.finish(answer.bytes, "h:1");
        REQUIRE_FALSE(finish);
        REQUIRE(finish.error().what ==
                "the rendezvous at h:1 asks for a secret, but this node was "
                "started with --insecure; leave that out");
    }
    SECTION("only the rendezvous") {
        RendezvousHandshake rendezvous(std::nullopt, nonce_of(2));
        const RendezvousHandshake::Answer answer = rendezvous.answer(agent.hello());
        REQUIRE(answer.refused);
        const auto finish = agent.finish(answer.bytes, "h:1");
        REQUIRE_FALSE(finish);
        REQUIRE(finish.error().what ==
                "the rendezvous at h:1 was started with --insecure, this "
                "node was not; start all nodes with it, or none");
    }
    SECTION("an answer that claims no secret does not talk an agent out of its own") {
        RendezvousHandshake impostor(std::nullopt, nonce_of(2));
        std::string answer = impostor.answer(insecure_agent.hello()).bytes;
        REQUIRE_FALSE(agent.finish(answer, "h:1"));
        answer[5] = 1;  // claims a secret, proves nothing
        REQUIRE(agent.finish(answer, "h:1").error().code == ErrorCode::BadSecret);
    }
}

TEST_CASE("another protocol version is refused by name on both sides") {
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    RendezvousHandshake rendezvous(secret_of(7), nonce_of(2));
    std::string hello = agent.hello();
    hello[4] = 9;
    const RendezvousHandshake::Answer answer = rendezvous.answer(hello);
    REQUIRE(answer.refused);
    REQUIRE(answer.refused->what == "it speaks protocol 9, we speak 1");
    std::string newer = answer.bytes;
    newer[4] = 2;
    const auto finish = agent.finish(newer, "h:1");
    REQUIRE_FALSE(finish);
    REQUIRE(finish.error().code == ErrorCode::Refused);
    REQUIRE(finish.error().what ==
            "the rendezvous at h:1 speaks protocol 2, this ddprun speaks 1; "
            "install the same version on all nodes");
}

TEST_CASE("a hello that comes back is no answer and an answer is no hello") {
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    const auto reflected = agent.finish(agent.hello(), "h:1");
    REQUIRE_FALSE(reflected);
    REQUIRE(reflected.error().code == ErrorCode::BadMessage);
    RendezvousHandshake first(secret_of(7), nonce_of(2));
    RendezvousHandshake second(secret_of(7), nonce_of(3));
    const RendezvousHandshake::Answer answer = second.answer(first.answer(agent.hello()).bytes);
    REQUIRE(answer.refused);
    REQUIRE(answer.bytes.empty());
}

TEST_CASE("a recorded handshake is of no use on another connection or for another job") {
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    RendezvousHandshake recorded(secret_of(7), nonce_of(2));
    const std::string answer = recorded.answer(agent.hello()).bytes;
    const std::string proof = agent.finish(answer, "h:1")->proof;
    RendezvousHandshake rendezvous(secret_of(7), nonce_of(3));
    static_cast<void>(rendezvous.answer(agent.hello()));
    REQUIRE_FALSE(rendezvous.finish(proof));
    // The same nonces, another job.
    RendezvousHandshake twin(secret_of(7), nonce_of(2));
    static_cast<void>(twin.answer(AgentHandshake(secret_of(7), JobId("x"), nonce_of(1)).hello()));
    REQUIRE_FALSE(twin.finish(proof));
    // A recorded answer given to another agent.
    REQUIRE_FALSE(AgentHandshake(secret_of(7), kJob, nonce_of(4)).finish(answer, "h:1"));
}

TEST_CASE("what a connection is for is proved with the rest of its hello") {
    const AgentHandshake asking(secret_of(7), kJob, nonce_of(1), PeerRole::Control);
    const AgentHandshake joining(secret_of(7), kJob, nonce_of(1));
    REQUIRE(asking.hello()[6] == 'c');
    RendezvousHandshake rendezvous(secret_of(7), nonce_of(2));
    const std::string answer = rendezvous.answer(asking.hello()).bytes;
    REQUIRE(rendezvous.finish(asking.finish(answer, "h:1")->proof));
    REQUIRE(rendezvous.role() == PeerRole::Control);
    // A change on the way cannot turn a caller that asks into one that joins, nor the reverse.
    REQUIRE_FALSE(joining.finish(answer, "h:1"));
    RendezvousHandshake twin(secret_of(7), nonce_of(2));
    static_cast<void>(twin.answer(joining.hello()));
    REQUIRE(twin.role() == PeerRole::Agent);
    REQUIRE_FALSE(twin.finish(asking.finish(answer, "h:1")->proof));
    std::string unknown = joining.hello();
    unknown[6] = 'x';
    REQUIRE(twin.answer(unknown).refused);
    REQUIRE(twin.answer(unknown).bytes.empty());
}

/// The objections of each end to the other: empty if both are content.
struct Greeting {
    std::string caller;
    std::string rendezvous;
};

Greeting greet(PeerRole role, const JobSecret& secret, RendezvousHandshake rendezvous) {
    const AgentHandshake caller(secret, kJob, nonce_of(1), role);
    const RendezvousHandshake::Answer answer = rendezvous.answer(caller.hello());
    const Result<AgentHandshake::Finish> finish = caller.finish(answer.bytes, "h:1");
    if (!finish) {
        return {finish.error().what, answer.refused ? answer.refused->what : ""};
    }
    const Result<SessionKeys> keys = rendezvous.finish(finish->proof);
    return {"", keys ? "" : keys.error().what};
}

TEST_CASE("operators prove a secret of their own, and nobody else's will do") {
    const auto rendezvous = [] {
        return RendezvousHandshake(secret_of(7), nonce_of(2), secret_of(9));
    };
    CHECK(greet(PeerRole::Operator, secret_of(9), rendezvous()).caller.empty());
    CHECK(greet(PeerRole::Operator, secret_of(9), rendezvous()).rendezvous.empty());
    CHECK(greet(PeerRole::Operator, secret_of(7), rendezvous())
              .caller.find("the operator's secret in /home/me/.config/ddprun/secret is not that of "
                           "the rendezvous at h:1") == 0);
    for (const PeerRole role : {PeerRole::Agent, PeerRole::Control}) {
        CHECK(greet(role, secret_of(7), rendezvous()).caller.empty());
        CHECK_FALSE(greet(role, secret_of(9), rendezvous()).caller.empty());
    }
    // A caller that ignores the answer is turned away by its own proof.
    RendezvousHandshake careful = rendezvous();
    const AgentHandshake forger(secret_of(7), kJob, nonce_of(1), PeerRole::Operator);
    REQUIRE_FALSE(careful.answer(forger.hello()).refused);
    REQUIRE_FALSE(careful.finish(std::string(kProofBytes, 'x')));
}

TEST_CASE("without a secret of operators nobody is one, and is told what to do") {
    for (const std::optional<JobSecret>& secret :
         {std::optional(secret_of(7)), std::optional<JobSecret>()}) {
        const Greeting told =
            greet(PeerRole::Operator, secret_of(7), RendezvousHandshake(secret, nonce_of(2)));
        CHECK(told.caller.find("takes no orders; start it, or the ddprun that starts it, with "
                               "--operator-secret-file FILE") != std::string::npos);
        CHECK(told.rendezvous.find("--operator-secret-file") != std::string::npos);
    }
    // A daemon without a secret for nodes may have one for operators.
    CHECK(greet(PeerRole::Operator, secret_of(9),
                RendezvousHandshake(std::nullopt, nonce_of(2), secret_of(9)))
              .caller.empty());
}

TEST_CASE("what one role has proved is of no use for another, not even with one secret") {
    RendezvousHandshake rendezvous(secret_of(7), nonce_of(2), secret_of(7));
    const AgentHandshake asker(secret_of(7), kJob, nonce_of(1), PeerRole::Control);
    RendezvousHandshake other(secret_of(7), nonce_of(2), secret_of(7));
    const Result<AgentHandshake::Finish> proved =
        asker.finish(other.answer(asker.hello()).bytes, "h:1");
    REQUIRE(proved);
    const AgentHandshake as_operator(secret_of(7), kJob, nonce_of(1), PeerRole::Operator);
    REQUIRE_FALSE(rendezvous.answer(as_operator.hello()).refused);
    REQUIRE_FALSE(rendezvous.finish(proved->proof));
}

TEST_CASE("an agent that does not speak TLS is told that it must") {
    const std::string answer = answer_about_tls(true);
    REQUIRE(answer.size() == kAnswerBytes);
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    const Result<AgentHandshake::Finish> finish = agent.finish(answer, "h:1");
    REQUIRE_FALSE(finish);
    REQUIRE(finish.error().code == ErrorCode::Refused);
    REQUIRE(finish.error().what ==
            "the rendezvous at h:1 asks for TLS; give --tls-ca FILE with the authority that signed "
            "its certificate");
    // An agent that does not speak TLS may not accept the answer for agents that do.
    REQUIRE(agent.finish(answer_about_tls(false), "h:1").error().code == ErrorCode::BadMessage);
}

TEST_CASE("any changed bit ends a handshake") {
    const AgentHandshake agent(secret_of(7), kJob, nonce_of(1));
    const std::string hello = agent.hello();
    for (std::size_t bit = 0; bit < 8 * (kHelloBytes + kAnswerBytes + kProofBytes); ++bit) {
        const std::size_t at = bit / 8;
        const char flip = static_cast<char>(1 << bit % 8);
        RendezvousHandshake rendezvous(secret_of(7), nonce_of(2));
        std::string sent = hello;
        if (at < kHelloBytes) {
            sent[at] = static_cast<char>(sent[at] ^ flip);
        }
        const RendezvousHandshake::Answer answer = rendezvous.answer(sent);
        if (answer.refused) {
            continue;
        }
        std::string answered = answer.bytes;
        if (at >= kHelloBytes && at < kHelloBytes + kAnswerBytes) {
            answered[at - kHelloBytes] = static_cast<char>(answered[at - kHelloBytes] ^ flip);
        }
        const Result<AgentHandshake::Finish> finish = agent.finish(answered, "h:1");
        if (!finish) {
            continue;
        }
        std::string proof = finish->proof;
        if (at >= kHelloBytes + kAnswerBytes) {
            const std::size_t inside = at - kHelloBytes - kAnswerBytes;
            proof[inside] = static_cast<char>(proof[inside] ^ flip);
        }
        INFO("bit " << bit);
        // Byte 7 of both headers is reserved, but part of what is proved.
        REQUIRE_FALSE(rendezvous.finish(proof));
    }
}

TEST_CASE("nonces differ") {
    REQUIRE(random_nonce() != random_nonce());
}

// ---------------------------------------------------------------------------------------- frames

Mac key_of(unsigned char byte) {
    Mac key{};
    key.fill(byte);
    return key;
}

std::vector<std::string> read_all(FrameReader& reader, std::string_view bytes,
                                  const std::function<std::size_t()>& next_chunk) {
    std::vector<std::string> bodies;
    while (!bytes.empty()) {
        const std::size_t count = std::min(bytes.size(), next_chunk());
        reader.feed(bytes.substr(0, count));
        bytes.remove_prefix(count);
        while (true) {
            const Result<std::optional<std::string_view>> body = reader.next();
            REQUIRE(body);
            if (!body->has_value()) {
                break;
            }
            bodies.emplace_back(**body);
        }
    }
    return bodies;
}

TEST_CASE("frames come out the same however the bytes were cut") {
    for (const std::optional<Mac>& key : {std::optional<Mac>(key_of(3)), std::optional<Mac>()}) {
        FrameWriter writer(key);
        const std::vector<std::string> bodies = {"", "a", std::string(5000, 'b'), "", "{\"x\":1}"};
        std::string bytes;
        for (const std::string& body : bodies) {
            writer.append(body, bytes);
        }
        for (std::size_t chunk = 1; chunk < 60; ++chunk) {
            FrameReader reader(key, 5000);
            REQUIRE(read_all(reader, bytes, [chunk] { return chunk; }) == bodies);
            REQUIRE(reader.kept_bytes() == 0);
        }
        for (std::uint64_t seed = 0; seed < 100; ++seed) {
            Rng rng(seed);
            FrameReader reader(key, 5000);
            REQUIRE(read_all(reader, bytes, [&rng] { return 1 + rng.below(3000); }) == bodies);
        }
    }
}

TEST_CASE("the format of a frame is length, body and sixteen bytes of MAC") {
    FrameWriter writer(key_of(3));
    std::string bytes;
    writer.append("first", bytes);
    bytes.clear();
    writer.append("body", bytes);
    const std::string framed(
        "\0\0\0\x04"
        "body",
        8);
    REQUIRE(bytes.substr(0, 8) == framed);
    const std::string number("\0\0\0\0\0\0\0\x01", 8);
    REQUIRE(bytes.substr(8) == view(MacKey(key_of(3)).of({number + framed})).substr(0, 16));
}

TEST_CASE("a frame beyond the limit is refused from its length alone") {
    FrameReader reader(key_of(3), 100);
    reader.feed(std::string("\0\0\0\x65", 4));
    const auto body = reader.next();
    REQUIRE_FALSE(body);
    REQUIRE(body.error().code == ErrorCode::LimitExceeded);
    REQUIRE(body.error().what == "a frame of 101 bytes, allowed are 100");
    FrameReader huge(key_of(3), 100);
    huge.feed("\xff\xff\xff\xff");
    REQUIRE_FALSE(huge.next());
    REQUIRE_FALSE(huge.next());
}

TEST_CASE("frames that were changed, repeated, left out, swapped or sent back are refused") {
    FrameWriter writer(key_of(3));
    std::string first;
    std::string second;
    writer.append("first", first);
    writer.append("second", second);
    const auto refuses = [](const std::string& bytes, const Mac& key) {
        FrameReader reader(key, 100);
        reader.feed(bytes);
        for (int i = 0; i < 3; ++i) {
            if (!reader.next()) {
                return true;
            }
        }
        return false;
    };
    REQUIRE_FALSE(refuses(first + second, key_of(3)));
    REQUIRE(refuses(first + first, key_of(3)));
    REQUIRE(refuses(second, key_of(3)));
    REQUIRE(refuses(second + first, key_of(3)));
    REQUIRE(refuses(first, key_of(4)));
    for (std::size_t bit = 0; bit < 8 * first.size(); ++bit) {
        std::string changed = first;
        changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
        changed += std::string(100, 'x');  // so that a longer length finds its bytes
        INFO("bit " << bit);
        REQUIRE(refuses(changed, key_of(3)));
    }
}

}  // namespace
}  // namespace ddprun::rdzv
