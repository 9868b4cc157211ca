#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "base/limits.hpp"
#include "launcher/place/schedulers.hpp"
#include "launcher/place/variables.hpp"

namespace ddprun::launcher {

/// A multi-node parallel job: AWS Batch starts the container on each node. The main node is not
/// told its own address, under which the others know it.
Result<std::optional<Place>> place_in_aws_batch(const Surroundings& surroundings) {
    const Variables variables(surroundings);
    if (!variables.has("AWS_BATCH_JOB_ID") || !variables.has("AWS_BATCH_JOB_NUM_NODES")) {
        return std::optional<Place>{};
    }
    const Result<int> nodes = variables.small({"AWS_BATCH_JOB_NUM_NODES"}, Limits{}.nodes_max, 1);
    const Result<int> rank = variables.small({"AWS_BATCH_JOB_NODE_INDEX"}, Limits{}.nodes_max, 0);
    const Result<int> attempt = variables.small({"AWS_BATCH_JOB_ATTEMPT"}, 1'000'000, 1);
    if (!nodes || !rank || !attempt) {
        return !nodes ? nodes.error() : !rank ? rank.error() : attempt.error();
    }
    if (*rank >= *nodes) {
        return variables.first_of({"AWS_BATCH_JOB_NODE_INDEX"})
            ->wrong(fmt::format("the job has {} nodes", *nodes));
    }
    Place place;
    const std::string id = variables.text("AWS_BATCH_JOB_ID");
    place.job_id = id.substr(0, id.find('#'));  // Behind it is the node.
    place.job = "aws batch job " + place.job_id;
    place.nodes = *nodes;
    place.node_rank = *rank;
    place.restarts = *attempt > 1 ? *attempt - 1 : 0;
    const std::optional<Variable> main =
        variables.first_of({"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"});
    place.endpoint_host = main ? main->value : surroundings.host_name();
    place.endpoint_port = port_of_job(XXH64(place.job_id.data(), place.job_id.size(), 0));
    return std::optional<Place>{std::move(place)};
}

}  // namespace ddprun::launcher
