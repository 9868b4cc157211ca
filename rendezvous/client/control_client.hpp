#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/tagged.hpp"
#include "rendezvous/client/tls.hpp"
#include "rendezvous/protocol/control.hpp"
#include "rendezvous/protocol/endpoint.hpp"
#include "rendezvous/protocol/limits.hpp"
#include "rendezvous/protocol/secret.hpp"

namespace ddprun::rdzv {

struct ControlOptions {
    Endpoint endpoint;
    std::optional<JobSecret> secret;        ///< none: --insecure
    std::shared_ptr<const TlsContext> tls;  ///< null: none
    JobId job;                              ///< the only one that may be asked about; empty: all
    Limits limits;
};

/// Asks the rendezvous how things stand with `options.job`; the answer is the JSON of a
/// StatusReply that decode_status_reply() takes. Blocks for at most connect_timeout and twice
/// hello_timeout, and for as long as the host's name takes to be resolved. Failure names the
/// endpoint.
[[nodiscard]] Result<std::string> ask_status(const ControlOptions& options);

}  // namespace ddprun::rdzv
