#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/mac.hpp"
#include "rendezvous/wire/secret.hpp"

/// How both ends of a connection prove that they hold the same secret before anything else is said.
/// Three messages of fixed size (wire/README.md shows them byte by byte):
///
///     agent       -> rendezvous   hello: version, mode, role, nonce, digest of the job id
///     rendezvous  -> agent        answer: version, mode, status, nonce, proof
///     agent       -> rendezvous   proof; frames may follow in the same segment
///
/// A proof is a MAC over both messages under the secret, with a label that names the speaker: it is
/// of no use on another connection, for another job, or in the other direction. Operators prove a
/// secret of their own: the role is a part of what is proved, so that nothing that proves one role
/// proves another. Pure: the nonces come from outside.
namespace ddprun::rdzv {

using Nonce = std::array<unsigned char, 32>;

/// From the kernel; different for every connection.
[[nodiscard]] Nonce random_nonce();

inline constexpr std::string_view kMagic = "DDPR";
inline constexpr unsigned char kProtocolVersion = 1;
inline constexpr std::size_t kHelloBytes = 72;
inline constexpr std::size_t kAnswerBytes = 72;
inline constexpr std::size_t kProofBytes = 32;

/// Purpose of a connection, from its first message to its end; a message of another role ends it.
/// The values travel.
enum class PeerRole : char {
    Agent = 'a',     ///< joins a job
    Control = 'c',   ///< asks about jobs (control.hpp)
    Operator = 'o',  ///< asks something of a job; its secret is the operators'
};

/// The answer of a rendezvous to those who do not speak TLS although it does, and the reverse.
[[nodiscard]] std::string answer_about_tls(bool is_needed);

/// Keys that seal the frames of one connection, seen from one end. Without a secret on both sides
/// the keys are empty, and frames carry no MAC.
struct SessionKeys {
    std::optional<Mac> outgoing;
    std::optional<Mac> incoming;
};

/// The agent's side: send hello(), read kAnswerBytes, send what finish() gives.
class AgentHandshake {
public:
    /// `secret`: of that role.
    AgentHandshake(std::optional<JobSecret> secret, const JobId& job, const Nonce& nonce,
                   PeerRole role = PeerRole::Agent);

    [[nodiscard]] const std::string& hello() const { return hello_; }

    struct Finish {
        std::string proof;
        SessionKeys keys;
    };
    /// Judges the answer of the rendezvous that people know as `peer`. Every failure is final:
    /// BadMessage (no rendezvous), Refused (version, mode), BadSecret.
    [[nodiscard]] Result<Finish> finish(std::string_view answer, const std::string& peer) const;

private:
    std::optional<JobSecret> secret_;
    std::string hello_;
};

/// The rendezvous's side: read kHelloBytes, send the answer even if it refuses, read kProofBytes.
class RendezvousHandshake {
public:
    /// Without a secret of operators no peer is one.
    RendezvousHandshake(std::optional<JobSecret> secret, const Nonce& nonce,
                        std::optional<JobSecret> operator_secret = std::nullopt);

    struct Answer {
        std::string bytes;             ///< empty: say nothing, close
        std::optional<Error> refused;  ///< send the bytes, then close
    };
    [[nodiscard]] Answer answer(std::string_view hello);

    /// After an answer that did not refuse.
    [[nodiscard]] Result<SessionKeys> finish(std::string_view proof) const;

    /// Whether this handshake was made for `job`. Binds the connection to the one job of its hello.
    [[nodiscard]] bool is_for(const JobId& job) const;

    /// After finish().
    [[nodiscard]] PeerRole role() const;

private:
    /// The secret for the role in this hello.
    [[nodiscard]] const std::optional<JobSecret>& secret_for(std::string_view hello) const;

    std::optional<JobSecret> secret_;
    std::optional<JobSecret> operator_secret_;
    Nonce nonce_;
    std::string transcript_;
};

}  // namespace ddprun::rdzv
