#include "launcher/ctl/verbs/verbs.hpp"
#include "rendezvous/http/http_access.hpp"
#include "rendezvous/transport/secret_file.hpp"

namespace ddprun::launcher {

namespace {

int print_token(const ConnectionOptions& options) {
    const std::string file = operator_secret_file(options);
    if (file.empty()) {
        return complain({ErrorCode::InvalidArgument,
                         "token: of which secret? Name it with --operator-secret-file FILE"});
    }
    const Result<rdzv::JobSecret> secret = rdzv::load_secret(file);
    if (!secret) {
        return complain(secret.error());
    }
    fmt::print("{}\n", rdzv::order_token_of(*secret));
    return kExitSuccess;
}

}  // namespace

Action declare_token(CLI::App& verb) {
    const auto options = std::make_shared<ConnectionOptions>();
    add_operator_secret(verb, *options);
    verb.footer(R"(
It goes into Authorization: Bearer TOKEN, and into the page. It is derived from
the operators' secret, which itself never travels.

example:
  ddpctl token --operator-secret-file ops
)");
    return [options] { return print_token(*options); };
}

}  // namespace ddprun::launcher
