#include "rendezvous/wire/handshake.hpp"

#include <sys/random.h>

#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kModeAt = 5;
constexpr std::size_t kRoleOrStatusAt = 6;
constexpr std::size_t kNonceAt = 8;
constexpr std::size_t kJobOrProofAt = kNonceAt + sizeof(Nonce);

constexpr char kModeInsecure = 0;
constexpr char kModeSecret = 1;

// Statuses of an answer. No value is a role: a hello that comes back is no answer.
constexpr char kStatusGo = 0;
constexpr char kStatusVersion = 1;
constexpr char kStatusNeedsSecret = 2;
constexpr char kStatusHasNoSecret = 3;
constexpr char kStatusNeedsTls = 4;
constexpr char kStatusHasNoTls = 5;
constexpr char kStatusHasNoOperators = 6;

// The final NUL belongs to each label, so that none is the beginning of another.
constexpr std::string_view kRendezvousProof("ddprun rendezvous proof\0", 24);
constexpr std::string_view kAgentProof("ddprun agent proof\0", 19);
constexpr std::string_view kAgentFrames("ddprun agent frames\0", 20);
constexpr std::string_view kRendezvousFrames("ddprun rendezvous frames\0", 25);

std::string header(char mode, char role_or_status) {
    std::string bytes(kMagic);
    bytes += static_cast<char>(kProtocolVersion);
    bytes += mode;
    bytes += role_or_status;
    bytes += '\0';
    return bytes;
}

bool is_role(char byte) {
    return byte == static_cast<char>(PeerRole::Agent) ||
           byte == static_cast<char>(PeerRole::Control) ||
           byte == static_cast<char>(PeerRole::Operator);
}

bool is_for_operator(std::string_view hello) {
    return hello[kRoleOrStatusAt] == static_cast<char>(PeerRole::Operator);
}

bool is_status(char byte) {
    return (byte >= kStatusGo && byte <= kStatusNeedsTls) || byte == kStatusHasNoOperators;
}

std::string_view view_of(const Nonce& nonce) {
    return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

char mode_of(const std::optional<JobSecret>& secret) {
    return secret ? kModeSecret : kModeInsecure;
}

Mac labelled(const std::optional<JobSecret>& secret, std::string_view label,
             std::string_view transcript) {
    return secret ? MacKey(secret->reveal()).of({label, transcript}) : Mac{};
}

unsigned version_of(std::string_view message) {
    return static_cast<unsigned char>(message[kVersionAt]);
}

SessionKeys keys_of(const std::optional<JobSecret>& secret, std::string_view transcript,
                    std::string_view outgoing, std::string_view incoming) {
    if (!secret) {
        return {};
    }
    return {.outgoing = labelled(secret, outgoing, transcript),
            .incoming = labelled(secret, incoming, transcript)};
}

}  // namespace

Nonce random_nonce() {
    Nonce nonce{};
    // Up to 256 bytes come whole, or not at all when a signal arrives before the pool is ready.
    const auto size = static_cast<ssize_t>(nonce.size());
    // The one input from outside: a nonce must be one that no attacker can foresee.
    while (::getrandom(nonce.data(), nonce.size(), 0) != size) {}  // tidy: allow machine_call
    return nonce;
}

// ---------------------------------------------------------------------------------------- agent

AgentHandshake::AgentHandshake(std::optional<JobSecret> secret, const JobId& job,
                               const Nonce& nonce, PeerRole role)
    : secret_(std::move(secret)), hello_(header(mode_of(secret_), static_cast<char>(role))) {
    hello_ += view_of(nonce);
    hello_ += view(sha256(job.value()));
    DDP_CHECK(hello_.size() == kHelloBytes, hello_.size());
}

Result<AgentHandshake::Finish> AgentHandshake::finish(std::string_view answer,
                                                      const std::string& peer) const {
    DDP_CHECK(answer.size() == kAnswerBytes, answer.size());
    const char status = answer[kRoleOrStatusAt];
    if (!answer.starts_with(kMagic) || !is_status(status)) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("what answers at {} is not a ddprun rendezvous; give another "
                                 "port in --rdzv-endpoint",
                                 peer)};
    }
    if (version_of(answer) != kProtocolVersion || status == kStatusVersion) {
        return Error{ErrorCode::Refused,
                     fmt::format("the rendezvous at {} speaks protocol {}, this ddprun speaks {}; "
                                 "install the same version on all nodes",
                                 peer, version_of(answer), unsigned{kProtocolVersion})};
    }
    if (status == kStatusNeedsTls) {
        return Error{ErrorCode::Refused,
                     fmt::format("the rendezvous at {} asks for TLS; give --tls-ca FILE with the "
                                 "authority that signed its certificate",
                                 peer)};
    }
    if (status == kStatusHasNoOperators) {
        return Error{ErrorCode::PermissionDenied,
                     fmt::format("the rendezvous at {} takes no orders; start it, or the ddprun "
                                 "that starts it, with --operator-secret-file FILE",
                                 peer)};
    }
    if (status == kStatusNeedsSecret || (!secret_ && answer[kModeAt] != kModeInsecure)) {
        return Error{ErrorCode::Refused,
                     fmt::format("the rendezvous at {} asks for a secret, but this node was "
                                 "started with --insecure; leave that out",
                                 peer)};
    }
    if (status == kStatusHasNoSecret || (secret_ && answer[kModeAt] != kModeSecret)) {
        return Error{ErrorCode::Refused,
                     fmt::format("the rendezvous at {} was started with --insecure, this node was "
                                 "not; start all nodes with it, or none",
                                 peer)};
    }
    const std::string transcript = hello_ + std::string(answer.substr(0, kJobOrProofAt));
    if (!equal_in_constant_time(answer.substr(kJobOrProofAt),
                                view(labelled(secret_, kRendezvousProof, transcript)))) {
        if (is_for_operator(hello_)) {
            return Error{ErrorCode::BadSecret,
                         fmt::format("the operator's secret in {} is not that of the rendezvous at "
                                     "{}; take the file that it was given as "
                                     "--operator-secret-file",
                                     secret_ ? secret_->origin() : std::string(), peer)};
        }
        return Error{ErrorCode::BadSecret,
                     fmt::format("the secret of this node is not that of the rendezvous at {}; "
                                 "copy {} from the node that started it, or pass --secret-file",
                                 peer, secret_ ? secret_->origin() : std::string())};
    }
    return Finish{.proof = std::string(view(labelled(secret_, kAgentProof, transcript))),
                  .keys = keys_of(secret_, transcript, kAgentFrames, kRendezvousFrames)};
}

// ----------------------------------------------------------------------------------- rendezvous

RendezvousHandshake::RendezvousHandshake(std::optional<JobSecret> secret, const Nonce& nonce,
                                         std::optional<JobSecret> operator_secret)
    : secret_(std::move(secret)), operator_secret_(std::move(operator_secret)), nonce_(nonce) {}

const std::optional<JobSecret>& RendezvousHandshake::secret_for(std::string_view hello) const {
    return is_for_operator(hello) ? operator_secret_ : secret_;
}

RendezvousHandshake::Answer RendezvousHandshake::answer(std::string_view hello) {
    DDP_CHECK(hello.size() == kHelloBytes, hello.size());
    if (!hello.starts_with(kMagic) || !is_role(hello[kRoleOrStatusAt])) {
        return {.bytes = {}, .refused = Error{ErrorCode::BadMessage, "it is no ddprun agent"}};
    }
    const std::optional<JobSecret>& secret = secret_for(hello);
    char status = kStatusGo;
    std::optional<Error> refused;
    if (version_of(hello) != kProtocolVersion) {
        status = kStatusVersion;
        refused =
            Error{ErrorCode::Refused, fmt::format("it speaks protocol {}, we speak {}",
                                                  version_of(hello), unsigned{kProtocolVersion})};
    } else if (is_for_operator(hello) && !secret) {
        status = kStatusHasNoOperators;
        refused = Error{ErrorCode::Refused,
                        "it is an operator; orders are taken with --operator-secret-file"};
    } else if (secret && hello[kModeAt] != kModeSecret) {
        status = kStatusNeedsSecret;
        refused = Error{ErrorCode::Refused, "it was started with --insecure, we were not"};
    } else if (!secret && hello[kModeAt] != kModeInsecure) {
        status = kStatusHasNoSecret;
        refused = Error{ErrorCode::Refused, "we were started with --insecure, it was not"};
    }
    std::string bytes = header(mode_of(secret), status);
    bytes += view_of(nonce_);
    transcript_ = std::string(hello) + bytes;
    // A refused peer gets no proof on which it could try secrets.
    bytes += view(refused ? Mac{} : labelled(secret, kRendezvousProof, transcript_));
    DDP_CHECK(bytes.size() == kAnswerBytes, bytes.size());
    return {.bytes = std::move(bytes), .refused = std::move(refused)};
}

Result<SessionKeys> RendezvousHandshake::finish(std::string_view proof) const {
    DDP_CHECK(proof.size() == kProofBytes && !transcript_.empty(), proof.size());
    const std::optional<JobSecret>& secret = secret_for(transcript_);
    if (!equal_in_constant_time(proof, view(labelled(secret, kAgentProof, transcript_)))) {
        return Error{ErrorCode::BadSecret, "its secret is not ours"};
    }
    return keys_of(secret, transcript_, kRendezvousFrames, kAgentFrames);
}

bool RendezvousHandshake::is_for(const JobId& job) const {
    return transcript_.size() >= kHelloBytes &&
           std::string_view(transcript_).substr(kJobOrProofAt, sizeof(Mac)) ==
               view(sha256(job.value()));
}

PeerRole RendezvousHandshake::role() const {
    DDP_CHECK(!transcript_.empty());
    return static_cast<PeerRole>(transcript_[kRoleOrStatusAt]);
}

std::string answer_about_tls(bool is_needed) {
    std::string bytes = header(kModeSecret, is_needed ? kStatusNeedsTls : kStatusHasNoTls);
    bytes.resize(kAnswerBytes, '\0');
    return bytes;
}

}  // namespace ddprun::rdzv
