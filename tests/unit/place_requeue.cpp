#include "launcher/place/requeue.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun::launcher;

namespace {

Place place_of(int nodes, int node_rank, int restarts) {
    Place place;
    place.nodes = nodes;
    place.node_rank = node_rank;
    place.restarts = restarts;
    return place;
}

RequeueCase twice(Departure departure, int nodes_min) {
    return {.departure = departure, .nodes_min = nodes_min, .most = 2};
}

/// Slurm 22.05.8, shortened.
constexpr char kShown[] =
    "JobId=42 JobName=train\n   UserId=root(0) GroupId=root(0) MCS_label=N/A\n"
    "   JobState=RUNNING Reason=None Dependency=(null)\n"
    "   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n";

}  // namespace

TEST_CASE("one node puts a job back that all leave, as often as was allowed") {
    const RequeueCase all = twice(Departure::WholeJob, 2);
    CHECK(choose_requeue(place_of(2, 0, 0), all) == RequeueChoice::Yes);
    CHECK(choose_requeue(place_of(2, 0, 1), all) == RequeueChoice::Yes);
    CHECK(choose_requeue(place_of(2, 0, 2), all) == RequeueChoice::UsedUp);
    CHECK(choose_requeue(place_of(2, 1, 0), all) == RequeueChoice::No);
    CHECK(choose_requeue(place_of(2, 1, 2), all) == RequeueChoice::No);
    CHECK(choose_requeue(place_of(2, 0, 0), twice(Departure::None, 2)) == RequeueChoice::No);
}

TEST_CASE("a node that leaves alone puts the job back if that cannot go on without it") {
    CHECK(choose_requeue(place_of(2, 1, 0), twice(Departure::ThisNode, 2)) == RequeueChoice::Yes);
    CHECK(choose_requeue(place_of(2, 1, 2), twice(Departure::ThisNode, 2)) ==
          RequeueChoice::UsedUp);
    CHECK(choose_requeue(place_of(2, 0, 0), twice(Departure::ThisNode, 1)) == RequeueChoice::No);
    CHECK(choose_requeue(place_of(1, 0, 0), twice(Departure::ThisNode, 1)) == RequeueChoice::Yes);
}

TEST_CASE("what scontrol shows of a job is read") {
    CHECK(field_of_job(kShown, "JobState") == "RUNNING");
    CHECK(field_of_job(kShown, "State").empty());
    CHECK(field_of_job(kShown, "ExitCode") == "0:0");
    CHECK(field_of_job("JobState=PENDING", "JobState") == "PENDING");
    CHECK(why_not_requeued(kShown).empty());
    CHECK(why_not_requeued("Requeue=0 Restarts=0 BatchFlag=1") ==
          "it may not be requeued; start it with sbatch --requeue");
    CHECK(why_not_requeued("Requeue=1 Restarts=0 BatchFlag=0") ==
          "it is no batch job, and Slurm requeues no other; start it with sbatch");
}
