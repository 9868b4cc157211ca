#include "tests/unit/place_fixture.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

const std::string kWayOut = "; --place none starts without the scheduler";

// AWS Batch: names and meanings of
// https://docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html; values are invented.
const Variables kBatchMain = {{"AWS_BATCH_JOB_ATTEMPT", "1"},
                              {"AWS_BATCH_JOB_ID", "a7182d0e-7e9e-44a1-8417-3b7d8dac9a42#0"},
                              {"AWS_BATCH_JOB_MAIN_NODE_INDEX", "0"},
                              {"AWS_BATCH_JOB_NODE_INDEX", "0"},
                              {"AWS_BATCH_JOB_NUM_NODES", "2"}};
const Variables kBatchChild =
    with(kBatchMain, {{"AWS_BATCH_JOB_ID", "a7182d0e-7e9e-44a1-8417-3b7d8dac9a42#1"},
                      {"AWS_BATCH_JOB_NODE_INDEX", "1"},
                      {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "10.0.64.45"}});

// SageMaker: the file of github.com/aws/sagemaker-python-sdk, RESOURCE_CONFIG of its tests of
// container_drivers; TRAINING_JOB_NAME as its code reads it.
const std::string kResources = "/opt/ml/input/config/resourceconfig.json";
Node sagemaker(const std::string& host) {
    return {host,
            {{"TRAINING_JOB_NAME", "test-job"}},
            {{kResources, R"({"current_host": ")" + host +
                              R"(", "hosts": ["algo-1", "algo-2", "algo-3"],
 "current_group_name": "train1", "current_instance_type": "ml.p3.16xlarge",
 "instance_groups": [{"instance_group_name": "train1", "instance_type": "ml.p3.16xlarge",
                      "hosts": ["algo-1", "algo-2"]},
                     {"instance_group_name": "train2", "instance_type": "ml.p3.8xlarge",
                      "hosts": ["algo-3"]}],
 "network_interface_name": "eth0"})"}}};
}

// Kubernetes: a pod's name, index and service of
// https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/; the file as kubelet's
// managedHostsFileContent() writes it (github.com/kubernetes/kubernetes).
Node pod(int index, const std::string& domain = "headless-svc.site.org") {
    const std::string name = "example-job-" + std::to_string(index);
    const std::string whole = domain.empty() ? name : name + "." + domain + "\t" + name;
    return {name,
            {{"JOB_COMPLETION_INDEX", std::to_string(index)},
             {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
             {"HOSTNAME", name}},
            {{"/etc/hosts", "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n10.244.1.5\t" +
                                whole + "\n"}}};
}

}  // namespace

TEST_CASE("AWS Batch needs no flags: the main node's address is where nodes meet") {
    const LaunchPlan main = Node{"ip-10-0-64-45.site.org", kBatchMain}.plan();
    CHECK(main.identity().settings.max_nodes == 2);
    CHECK(main.identity().node_rank == 0);
    CHECK(main.endpoint_host == "ip-10-0-64-45.site.org");
    CHECK(main.identity().job == JobId{"a7182d0e-7e9e-44a1-8417-3b7d8dac9a42"});
    REQUIRE_FALSE(main.notes.empty());
    CHECK_THAT(main.notes[0],
               Catch::StartsWith("aws batch job a7182d0e-7e9e-44a1-8417-3b7d8dac9a42: 2 nodes, "
                                 "endpoint ip-10-0-64-45.site.org:"));
    const LaunchPlan child = Node{"ip-10-0-64-46.site.org", kBatchChild}.plan();
    CHECK(child.identity().node_rank == 1);
    CHECK(child.endpoint_host == "10.0.64.45");
    CHECK(child.endpoint_port == main.endpoint_port);
    CHECK(child.identity().job == main.identity().job);
    CHECK(Node{"a", with(kBatchMain, {{"AWS_BATCH_JOB_ATTEMPT", "3"}})}.plan().notes[0].ends_with(
        ", started again 2 times"));
    CHECK(Node{"a", with(kBatchChild, {{"AWS_BATCH_JOB_NODE_INDEX", "2"}})}.refusal() ==
          "AWS_BATCH_JOB_NODE_INDEX=2: the job has 2 nodes" + kWayOut);
    // ddprun checks each value that becomes part of file names, whatever its source.
    CHECK_THAT(Node({"a", with(kBatchMain, {{"AWS_BATCH_JOB_ID", "../x"}})}).refusal(),
               Catch::Contains("becomes part of file names"));
    // A job of one container has no nodes.
    CHECK_FALSE(plan_of("", {{"AWS_BATCH_JOB_ID", "x"}, {"AWS_BATCH_JOB_ATTEMPT", "1"}}).place);
}

TEST_CASE("SageMaker needs no flags: hosts are those of resourceconfig.json") {
    const LaunchPlan second = sagemaker("algo-2").plan();
    CHECK(second.identity().settings.max_nodes == 3);
    CHECK(second.identity().node_rank == 1);
    CHECK(second.endpoint_host == "algo-1");
    CHECK(second.identity().job == JobId{"test-job"});
    CHECK(sagemaker("algo-1").plan().notes[0] ==
          "sagemaker job test-job: 3 nodes, endpoint algo-1:23000");
    // The whole file: with 300 hosts it has more than a page.
    Node many = sagemaker("algo-1");
    std::string hosts = R"("algo-1")";
    for (int i = 2; i <= 300; ++i) {
        hosts += R"(, "algo-)" + std::to_string(i) + '"';
    }
    many.files[kResources] = R"({"current_host": "algo-1", "hosts": [)" + hosts + "]}";
    CHECK(many.plan().identity().settings.max_nodes == 300);
}

TEST_CASE("a resourceconfig.json that cannot be read is refused") {
    const auto refused = [](const std::string& text) {
        Node node = sagemaker("algo-1");
        node.files[kResources] = text;
        return node.refusal();
    };
    CHECK(refused("{") == kResources + ": is no object of JSON" + kWayOut);
    CHECK(refused("[]") == kResources + ": is no object of JSON" + kWayOut);
    CHECK(refused("{}") == kResources + ": hosts: no node is named" + kWayOut);
    CHECK(refused(R"({"hosts": [1]})") == kResources + ": hosts: '?' is no host" + kWayOut);
    CHECK(refused(R"({"hosts": ["a"]})") ==
          kResources + ": current_host '' is none of the 1 hosts" + kWayOut);
}

TEST_CASE("a pod of an Indexed Job asks for what Kubernetes does not tell") {
    CHECK(pod(1).refusal() ==
          "kubernetes job example-job does not tell how many nodes it has; add --nnodes N "
          "--rdzv-endpoint example-job-0.headless-svc:29400, the same on every node (--standalone "
          "for this node alone)");
    CHECK_THAT(pod(0, "").refusal(),
               Catch::Contains("--rdzv-endpoint example-job-0.SERVICE:29400"));
    CHECK(pod(1).refusal("--rdzv-id j --rdzv-endpoint h:1") ==
          "kubernetes job example-job has N nodes, but with --rdzv-endpoint h:1 nothing is taken "
          "from it, and --nnodes is 1: each node would be a job of its own; add --nnodes N and "
          "--rdzv-endpoint, or --nnodes 1 if that is meant");
    const LaunchPlan plan =
        pod(1).plan("--nnodes 2 --rdzv-id j --rdzv-endpoint example-job-0.headless-svc");
    CHECK(plan.identity().settings.max_nodes == 2);
    CHECK(plan.endpoint_host == "example-job-0.headless-svc");
    CHECK(pod(1).plan("--standalone").is_single_node);
    // As Kubeflow's PyTorchJob and TrainJob do.
    Node kubeflow = pod(1);
    kubeflow.variables =
        with(kubeflow.variables,
             {{"PET_NNODES", "2"}, {"PET_RDZV_ENDPOINT", "h:29400"}, {"PET_RDZV_ID", "j"}});
    CHECK(kubeflow.plan().endpoint_host == "h");
}
