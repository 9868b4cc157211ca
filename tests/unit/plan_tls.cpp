#include "tests/unit/plan_fake_surroundings.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

const std::string kTwoNodes = "--nnodes 2 --rdzv-id j --rdzv-endpoint head ";

PlanOutcome outcome_with_files(const std::string& flags, const Variables& variables = {}) {
    FakeSurroundings surroundings;
    surroundings.files = {"train.py", "c.pem", "k.pem", "a.pem"};
    for (const auto& [name, value] : variables) {
        surroundings.variables[name] = value;
    }
    return make_plan(words(flags + " train.py"), surroundings);
}

std::string refusal(const std::string& flags) {
    const PlanOutcome outcome = outcome_with_files(kTwoNodes + flags);
    REQUIRE(std::holds_alternative<UsageError>(outcome));
    CHECK(std::get<UsageError>(outcome).exit_code == 2);
    return std::get<UsageError>(outcome).line;
}

}  // namespace

TEST_CASE("the files of TLS come from flags or variables") {
    const LaunchPlan none = as_plan(outcome_with_files(kTwoNodes));
    CHECK_FALSE(none.tls.is_on());
    const LaunchPlan all =
        as_plan(outcome_with_files(kTwoNodes + "--tls-cert c.pem --tls_key k.pem --tls-ca=a.pem"));
    CHECK(all.tls.cert == "c.pem");
    CHECK(all.tls.key == "k.pem");
    CHECK(all.tls.ca == "a.pem");
    const LaunchPlan by_variable =
        as_plan(outcome_with_files(kTwoNodes, {{"PET_TLS_CA", "a.pem"}, {"PET_TLS_CERT", ""}}));
    CHECK(by_variable.tls.ca == "a.pem");
    CHECK(by_variable.tls.is_on());
    // Nothing leaves the process of a single node.
    CHECK_FALSE(as_plan(outcome_with_files("--tls-ca a.pem")).tls.is_on());
}

TEST_CASE("files of TLS that do not go together are refused with what is missing") {
    CHECK(refusal("--tls-cert c.pem --tls-ca a.pem") ==
          "--tls-cert c.pem: --tls-cert and --tls-key belong together; give both");
    CHECK(refusal("--tls-key k.pem --tls-ca a.pem") ==
          "--tls-key k.pem: --tls-cert and --tls-key belong together; give both");
    CHECK(refusal("--tls-cert c.pem --tls-key k.pem") ==
          "--tls-cert c.pem: needs --tls-ca too, the authority that signed the certificate of the "
          "rendezvous");
    CHECK(refusal("--tls-ca b.pem") == "--tls-ca b.pem: no such file; it must hold PEM");
    CHECK(refusal("--tls-ca /tmp") == "--tls-ca /tmp: no such file; it must hold PEM");
}

TEST_CASE(
    "copies of checkpoints in memory are encrypted if the rendezvous is, which needs all files") {
    const std::string copied = "--memory-checkpoints 1M --memory-replicas 1 --tls-ca a.pem";
    CHECK(as_plan(outcome_with_files(kTwoNodes + copied + " --tls-cert c.pem --tls-key k.pem"))
              .notes.empty());
    CHECK(refusal(copied) ==
          "--memory-replicas 1: with --tls-ca the copies of checkpoints are encrypted, too, and "
          "each node shows its partner a certificate; give --tls-cert and --tls-key");
}
