// Goal: no peer gets through the handshake without the secret, neither by inventing bytes nor by
// changing or repeating those of a peer that has it. Method: both ends play with each other; the
// input is one side, or changes a byte in between, or puts the messages of another connection
// there.
#include "rendezvous/wire/handshake.hpp"

#include <optional>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "tests/fuzz/choices.hpp"

namespace ddprun::rdzv {

namespace {

JobSecret secret_of(unsigned char first) {
    JobSecret::Bytes bytes{};
    bytes.front() = first;
    return JobSecret(bytes, "made up");
}

Nonce nonce_of(unsigned char first) {
    Nonce nonce{};
    nonce.front() = first;
    return nonce;
}

const JobId kJob("job");
constexpr unsigned char kSecret = 7;

std::string padded(std::string_view bytes, std::size_t size) {
    std::string message(bytes.substr(0, size));
    message.resize(size);
    return message;
}

/// The input is an agent that does not hold the secret.
void invent_agent(fuzz::Choices& choices) {
    RendezvousHandshake rendezvous(secret_of(kSecret), nonce_of(1), secret_of(kSecret));
    std::string hello = padded(choices.bytes(kHelloBytes), kHelloBytes);
    if (choices.flag()) {
        hello = AgentHandshake(secret_of(choices.byte() | 0x80), kJob, nonce_of(2)).hello();
    }
    const RendezvousHandshake::Answer answer = rendezvous.answer(hello);
    DDP_CHECK(answer.bytes.empty() || answer.bytes.size() == kAnswerBytes, answer.bytes.size());
    if (answer.refused) {
        return;
    }
    // Its own bytes, or those it was just given.
    const std::string given = hello + answer.bytes;
    constexpr unsigned kPlaces = kHelloBytes + kAnswerBytes - kProofBytes + 1;
    const std::string_view proof = choices.flag()
                                       ? std::string_view(given).substr(choices.below(kPlaces))
                                       : choices.bytes(kProofBytes);
    DDP_CHECK(!rendezvous.finish(padded(proof, kProofBytes)), hello.size());
}

/// The input is a rendezvous that does not hold the secret.
void invent_rendezvous(fuzz::Choices& choices) {
    const AgentHandshake agent(secret_of(kSecret), kJob, nonce_of(2));
    std::string answer = padded(choices.bytes(kAnswerBytes), kAnswerBytes);
    if (choices.flag()) {
        RendezvousHandshake rendezvous(secret_of(choices.byte() | 0x80), nonce_of(1));
        answer = rendezvous.answer(agent.hello()).bytes;
    } else if (choices.flag()) {
        answer = agent.hello();
        answer[6] = static_cast<char>(choices.below(4));
    }
    DDP_CHECK(!agent.finish(answer, "peer"), answer.size());
}

std::string changed(std::string bytes, unsigned where, unsigned with) {
    char& byte = bytes[where % bytes.size()];
    byte = static_cast<char>(byte ^ static_cast<char>(with));
    return bytes;
}

/// An honest exchange, in which one byte of one message changes, or none, or one message is that of
/// another connection.
void meddle(fuzz::Choices& choices) {
    std::optional<JobSecret> agents;
    std::optional<JobSecret> rendezvouses;
    if (const unsigned who = choices.below(4); who != 0) {
        agents = (who & 1U) != 0 ? std::optional(secret_of(kSecret)) : std::nullopt;
        rendezvouses = (who & 2U) != 0 ? std::optional(secret_of(kSecret)) : std::nullopt;
    }
    const unsigned message = choices.below(4);  // 3: none
    const bool is_from_elsewhere = choices.flag();
    const unsigned where = choices.below(kHelloBytes);
    const unsigned with = 1 + choices.below(255);
    const auto tamper = [&](std::string bytes, const std::string& elsewhere, unsigned which) {
        return message != which    ? bytes
               : is_from_elsewhere ? elsewhere
                                   : changed(std::move(bytes), where, with);
    };
    // The other connection has the same secret, job and nonce of the agent.
    const AgentHandshake agent(agents, kJob, nonce_of(2));
    const AgentHandshake other_agent(agents, kJob, nonce_of(3));
    RendezvousHandshake rendezvous(rendezvouses, nonce_of(1));
    RendezvousHandshake other_rendezvous(rendezvouses, nonce_of(4));

    const std::string hello = tamper(agent.hello(), other_agent.hello(), 0);
    const RendezvousHandshake::Answer answer = rendezvous.answer(hello);
    const RendezvousHandshake::Answer other = other_rendezvous.answer(other_agent.hello());
    if (answer.bytes.empty()) {
        DDP_CHECK(message == 0 && answer.refused, where);
        return;
    }
    const Result<AgentHandshake::Finish> finish =
        agent.finish(tamper(answer.bytes, other.bytes, 1), "peer");
    const Result<AgentHandshake::Finish> other_finish = other_agent.finish(other.bytes, "peer");
    if (answer.refused || !finish) {
        DDP_CHECK(message < 2 || agents.has_value() != rendezvouses.has_value(), where);
        return;
    }
    const std::string other_proof = other_finish ? other_finish->proof : std::string(32, '\0');
    const Result<SessionKeys> keys = rendezvous.finish(tamper(finish->proof, other_proof, 2));
    DDP_CHECK(agents.has_value() == rendezvouses.has_value(), where);
    if (!agents) {
        return;  // Nothing is protected, and both want it so.
    }
    DDP_CHECK(keys.has_value() == (message == 3), message, where);
    if (keys) {
        DDP_CHECK(keys->incoming == finish->keys.outgoing && keys->outgoing && keys->incoming);
        DDP_CHECK(keys->outgoing == finish->keys.incoming && keys->outgoing != keys->incoming);
        DDP_CHECK(rendezvous.is_for(kJob) && !rendezvous.is_for(JobId("another")));
    }
}

}  // namespace

}  // namespace ddprun::rdzv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    switch (choices.below(3)) {
        case 0:
            ddprun::rdzv::invent_agent(choices);
            break;
        case 1:
            ddprun::rdzv::invent_rendezvous(choices);
            break;
        default:
            ddprun::rdzv::meddle(choices);
            break;
    }
    return 0;
}
