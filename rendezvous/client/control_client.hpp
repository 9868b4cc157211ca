#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/control.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/secret.hpp"

namespace ddprun::rdzv {

struct ControlOptions {
    Endpoint endpoint;
    std::optional<JobSecret> secret;        ///< none: --insecure; of an order, the operators'
    std::shared_ptr<const TlsContext> tls;  ///< null: none
    JobId job;                              ///< the only one that may be asked about; empty: all
    Limits limits;
};

struct ControlAnswer {
    std::string body;  ///< the JSON
    StatusReply reply;
    Endpoint from;  ///< who decides about the jobs
};

/// Asks the rendezvous how things stand with `options.job`. One of several daemons that does not
/// lead sends us to the one that does, who is asked then. Blocks for at most connect_timeout and
/// hello_timeout and answer_timeout for each daemon that is asked, and for as long as names take to
/// be resolved. Failure names the endpoint, and the way there.
[[nodiscard]] Result<ControlAnswer> ask_status(const ControlOptions& options);

/// Gives the order to the daemon that decides about `options.job`, as ask_status() asks; the order
/// is about that job. Success: the daemon heard it, and the reply says what becomes of it.
[[nodiscard]] Result<OperatorReply> give_order(const ControlOptions& options,
                                               const OperatorOrder& order);

}  // namespace ddprun::rdzv
