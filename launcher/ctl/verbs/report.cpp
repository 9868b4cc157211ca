#include "launcher/ctl/bundle.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct ReportOptions {
    std::string run;
    std::string log_dir;
    std::string bundle;  ///< the file to write
};

int write_report(const ReportOptions& options) {
    const Result<std::string> folder = choose_run(log_dir_of(options.log_dir), options.run, true);
    if (!folder) {
        return complain_of_run(folder.error());
    }
    const Result<std::string> bundle = bundle_of(*folder);
    if (!bundle) {
        return complain_of_run(bundle.error());
    }
    if (const Result<void> written = write_bundle(options.bundle, *bundle); !written) {
        fmt::print(stderr, "ddpctl: {}; name another file with --bundle\n", written.error().what);
        return kExitUsage;
    }
    fmt::print("{}: {} bytes; look through it before you pass it on: what workers wrote is in it\n",
               options.bundle, bundle->size());
    return kExitSuccess;
}

}  // namespace

Action declare_report(CLI::App& verb) {
    const auto options = std::make_shared<ReportOptions>();
    add_run(verb, options->run);
    add_value(verb, "--bundle", "FILE", options->bundle,
              "where to write it; only this user may read it")
        ->required();
    add_log_dir(verb, options->log_dir);
    verb.footer(R"(
RUN is at work or over. The file has its report, events, stacks, ends of logs,
what its workers are made of and what doctor says of this machine, as JSON
(docs/bundle.schema.json). It has no environment and no command line; what
workers wrote is in it.

example:
  ddpctl report llama --bundle llama.json
)");
    return [options] { return write_report(*options); };
}

}  // namespace ddprun::launcher
