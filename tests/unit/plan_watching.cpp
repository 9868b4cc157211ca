// Other programs and services learn how a job goes.

#include <string>
#include <vector>

#include "tests/unit/plan_fake_surroundings.hpp"

namespace ddprun::launcher::test {

using Names = std::vector<std::string>;

TEST_CASE("--env-per-run names variables, of which those that are set stay") {
    CHECK(plan_of("").env_per_run.empty());
    CHECK(plan_of("--env-per-run A_1,b,A_1").env_per_run == Names{"A_1", "b"});
    CHECK(plan_of("--env-per-run A_1,b", {{"b", ""}}).env_per_run == Names{"A_1"});
}

TEST_CASE("Weights & Biases goes on with a run under a number that it knows") {
    CHECK(plan_of("--env-per-run WANDB_RUN_ID").resumes_wandb);
    CHECK_FALSE(plan_of("--env-per-run WANDB_RUN_ID", {{"WANDB_RESUME", "must"}}).resumes_wandb);
    CHECK_FALSE(plan_of("--env-per-run WANDB_RUN_ID", {{"WANDB_RUN_ID", "x"}}).resumes_wandb);
    CHECK_FALSE(plan_of("--env-per-run COMET_ID").resumes_wandb);
}

TEST_CASE("--env-per-run says what cannot be") {
    CHECK(refusal_of("--env-per-run A=b").find("\"A=b\" is no name of a variable") !=
          std::string::npos);
    CHECK(refusal_of("--env-per-run A,,B").find("\"\" is no name of a variable") !=
          std::string::npos);
    CHECK(refusal_of("--env-per-run RANK").find("ddprun sets RANK itself") != std::string::npos);
    CHECK(refusal_of("--nnodes 2 --rdzv-endpoint h:1 --env-per-run A").find("needs --rdzv-id") !=
          std::string::npos);
    CHECK(plan_of("--env-per-run MLFLOW_RUN_ID").warnings.size() == 1);
}

TEST_CASE("--notify names a command or a URL, and no message shows it") {
    CHECK_FALSE(plan_of("").agent.notify);
    CHECK_FALSE(plan_of("--notify=").agent.notify);
    CHECK(plan_of("--notify mail").agent.notify ==
          agent::NotifyTarget(agent::NotifyCommand{"mail"}));
    CHECK(agent::name_of(*plan_of("", {{"PET_NOTIFY", "https://h/secret"}}).agent.notify) ==
          "https://h");
    for (const std::string& line : {refusal_of("--notify http://secret@h/secret"),
                                    refusal_of("", {{"PET_NOTIFY", "http://secret@h/secret"}})}) {
        CHECK(line.find("NOTIFY: the URL must be") + line.find("--notify: the URL must be") !=
              2 * std::string::npos);
        CHECK(line.find("secret") == std::string::npos);
    }
}

}  // namespace ddprun::launcher::test
