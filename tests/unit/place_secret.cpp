#include <set>
#include <string>
#include <utility>

#include "tests/unit/place_fixture.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

/// One of two nodes of a scheduler's job, whose home is /home/me and whose folder /home/user.
Node node(int rank, std::set<std::string> shared) {
    return {"here",
            {{"AWS_BATCH_JOB_ID", "42"},
             {"AWS_BATCH_JOB_NUM_NODES", "2"},
             {"AWS_BATCH_JOB_NODE_INDEX", std::to_string(rank)},
             {"HOME", "/home/me"}},
            {},
            std::move(shared)};
}

const std::string kOfJob = "/home/user/.ddprun-secret-42";

}  // namespace

TEST_CASE("nodes that share no home have their secret in the job's folder") {
    const LaunchPlan first = node(0, {"/home/user"}).plan();
    CHECK(first.secret_file == kOfJob);
    CHECK(first.makes_secret);
    CHECK(first.removes_secret);
    REQUIRE_FALSE(first.notes.empty());
    CHECK(first.notes[0] ==
          "homes are not shared: the nodes' secret is " + kOfJob + ", until the job ends");
    const LaunchPlan second = node(1, {"/home/user"}).plan();
    CHECK(second.secret_file == kOfJob);
    CHECK(second.makes_secret);
    CHECK_FALSE(second.removes_secret);
    CHECK(node(0, {"/home/user"}).plan("--rdzv-id mine").secret_file ==
          "/home/user/.ddprun-secret-mine");
}

TEST_CASE("the secret is that of the home where homes are shared, or nothing is") {
    for (const std::set<std::string>& shared :
         {std::set<std::string>{}, {"/home/me"}, {"/home/me", "/home/user"}}) {
        const LaunchPlan plan = node(0, shared).plan();
        CHECK(plan.secret_file.empty());
        CHECK_FALSE(plan.makes_secret);
    }
    Node configured = node(0, {"/net/config", "/home/user"});
    configured.variables["XDG_CONFIG_HOME"] = "/net/config";
    CHECK(configured.plan().secret_file.empty());
}

TEST_CASE("who says what the secret is, or how nodes meet, has it so") {
    Node given = node(0, {"/home/user"});
    CHECK(given.plan("--insecure").secret_file.empty());
    CHECK(given.plan("--standalone").secret_file.empty());
    CHECK(given.plan("--nnodes 2 --rdzv-id j --rdzv-endpoint h:1").secret_file.empty());
    CHECK(given.plan("--place none").secret_file.empty());
    CHECK_FALSE(given.plan("--secret-file train.py").makes_secret);
    CHECK(given.plan("--secret-file train.py").secret_file == "train.py");
    given.variables["DDPRUN_SECRET_FILE"] = "train.py";
    CHECK(given.plan().secret_file == "train.py");
    CHECK_FALSE(given.plan().makes_secret);
}
