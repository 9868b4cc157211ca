// GPUs that are visible, cores that may be used, and the CPUs that workers are bound to.

#include <numeric>

#include "base/number_ranges.hpp"
#include "launcher/machine/hwloc_topology.hpp"
#include "launcher/plan/cores.hpp"
#include "launcher/plan/gpus.hpp"
#include "launcher/plan/placement.hpp"
#include "tests/unit/plan_fake_surroundings.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

std::vector<Gpu> four_gpus() {
    return {{"GPU-8e11", "0000:01:00.0", {}},
            {"GPU-8e22", "0000:02:00.0", {"MIG-aa", "MIG-ab"}},
            {"GPU-7733", "0000:81:00.0", {}},
            {"GPU-7744", "0000:82:00.0", {}}};
}

/// The names of what is visible, with the number of each where it is known.
std::string seen(const std::optional<std::vector<Gpu>>& present,
                 const std::optional<std::string>& list) {
    std::string text;
    for (const VisibleGpu& gpu : visible_gpus(present, list)) {
        text += (text.empty() ? "" : " ") + gpu.name;
        text += gpu.number ? "=" + std::to_string(*gpu.number) : "";
    }
    return text;
}

std::string counted(const FakeSurroundings& machine) {
    const GpuSight gpus = see_gpus(machine);
    return std::to_string(gpus.visible.size()) + (gpus.is_evident ? "" : " believed");
}

/// A machine in hwloc's words, without `forbidden` CPUs.
Topology machine_of(const std::string& synthetic, const std::set<int>& forbidden = {}) {
    std::vector<int> allowed;
    for (int cpu = 0; cpu < 4096; ++cpu) {
        if (!forbidden.contains(cpu)) {
            allowed.push_back(cpu);
        }
    }
    const Result<Topology> topology = read_topology(synthetic, allowed);
    REQUIRE(topology.has_value());
    return *topology;
}

/// The workers' CPUs: "0-3 | 4-7", or why not.
std::string bound(BindingMode mode, const Topology& topology, const std::vector<int>& places,
                  int workers) {
    const auto lists = bind_workers(mode, topology, places, workers);
    if (!lists) {
        return lists.error().what;
    }
    std::string text;
    for (const std::vector<int>& cpus : *lists) {
        text += (text.empty() ? "" : " | ") + number_ranges(cpus);
    }
    return text;
}

/// Two packages of two NUMA nodes with two caches of two cores with two threads: 32 CPUs.
constexpr char kTwoPackages[] = "package:2 numa:2 l3cache:2 core:2 pu:2";

}  // namespace

TEST_CASE("CUDA_VISIBLE_DEVICES counts up to the first entry that is no device") {
    const std::optional present{four_gpus()};
    CHECK(seen(present, std::nullopt) == "0=0 1=1 2=2 3=3");
    CHECK(seen(present, "0,1") == "0=0 1=1");
    CHECK(seen(present, " 3 , 1 ") == "3=3 1=1");
    CHECK(seen(present, "").empty());
    CHECK(seen(present, "-1").empty());
    CHECK(seen(present, "NoDevFiles").empty());
    CHECK(seen(present, "0,-1,1") == "0=0");
    CHECK(seen(present, "0,4,1") == "0=0");
    CHECK(seen(present, "0,,1") == "0=0");
    CHECK(seen(present, "1x,+2y") == "1x=1 +2y=2");
    CHECK(seen(present, "0,1,0").empty());
    CHECK(seen(present, "0,1,+0").empty());
    CHECK(seen(present, "7,7").empty());
}

TEST_CASE("GPUs and MIG devices may be named by the beginning of their UUID, if one has it") {
    const std::optional present{four_gpus()};
    CHECK(seen(present, "GPU-7744,GPU-8e11") == "GPU-7744=3 GPU-8e11=0");
    CHECK(seen(present, "GPU-8e1") == "GPU-8e1=0");
    CHECK(seen(present, "GPU-8e").empty());
    CHECK(seen(present, "GPU-773,GPU-no,GPU-774") == "GPU-773=2");
    CHECK(seen(present, "GPU-8e11,GPU-8e1").empty());
    CHECK(seen(present, "MIG-aa,MIG-ab") == "MIG-aa=1 MIG-ab=1");
    CHECK(seen(present, "MIG-GPU-8e22/1/0") == "MIG-GPU-8e22/1/0=1");
    CHECK(seen(present, "GPU-8e11,MIG-aa") == "GPU-8e11=0");
    CHECK(seen(present, "GPU-8e11,0") == "GPU-8e11=0");
    CHECK(seen(present, "0,GPU-8e11") == "0=0");
    SECTION("names are believed where no driver tells any") {
        CHECK(seen(std::vector<Gpu>(2), "GPU-x,GPU-y,GPU-z") == "GPU-x GPU-y GPU-z");
        CHECK(seen(std::nullopt, "MIG-x,MIG-y") == "MIG-x MIG-y");
        CHECK(seen(std::nullopt, "3,1") == "3=3 1=1");
        CHECK(seen(std::nullopt, std::nullopt).empty());
    }
}

TEST_CASE("GPUs are what the driver tells, else device files, else those of ROCm's kernel driver") {
    FakeSurroundings machine;
    CHECK(counted(machine) == "0 believed");
    machine.variables["CUDA_VISIBLE_DEVICES"] = "0,1,2";
    CHECK(counted(machine) == "3 believed");
    const auto slots = [&machine](const std::string& value) {
        return as_plan(make_plan({"--nproc-per-node", value, "train.py"}, machine))
            .identity()

            .slots;
    };
    CHECK(slots("gpu") == 3);
    CHECK(slots("auto") == 6);  // the variable alone is no GPU

    const std::string kfd = "/sys/class/kfd/kfd/topology/nodes/";
    machine.texts[kfd + "0/properties"] = "cpu_cores_count 64\nsimd_count 0\n";
    machine.texts[kfd + "2/properties"] = "simd_count 440\nlocation_id 49920\ndomain 0\n";
    machine.texts[kfd + "10/properties"] = "simd_count 440\nlocation_id 50176\n";
    CHECK(counted(machine) == "2");
    CHECK(see_gpus(machine).present[0].pci_address == "0000:c3:00.0");
    CHECK(see_gpus(machine).present[1].pci_address == "0000:c4:00.0");
    CHECK(slots("auto") == 2);
    machine.variables["HIP_VISIBLE_DEVICES"] = "1";
    CHECK(counted(machine) == "1");
    machine.variables["ROCR_VISIBLE_DEVICES"] = "0";
    CHECK(counted(machine) == "0");

    for (const char* name : {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm"}) {
        machine.texts[std::string("/dev/") + name] = "";
    }
    CHECK(counted(machine) == "3");
    machine.gpus = four_gpus();
    CHECK(counted(machine) == "3");
    machine.variables.erase("CUDA_VISIBLE_DEVICES");
    CHECK(counted(machine) == "4");
}

TEST_CASE("whether workers may see GPUs of NVIDIA's driver is known without asking it") {
    FakeSurroundings machine;
    CHECK_FALSE(may_see_nvidia_gpus(machine));
    SECTION("its device") {
        machine.files.insert("/dev/nvidiactl");
    }
    SECTION("its device in Windows") {
        machine.files.insert("/dev/dxg");
    }
    SECTION("its library") {
        machine.variables["LD_LIBRARY_PATH"] = "/none::/opt/driver;/opt/other";
        machine.files.insert("/opt/driver/libnvidia-ml.so.1");
    }
    CHECK(may_see_nvidia_gpus(machine));
    machine.variables["CUDA_VISIBLE_DEVICES"] = "3,GPU-8e22";
    CHECK(may_see_nvidia_gpus(machine));
    for (const char* none : {"", "-1", "none"}) {
        machine.variables["CUDA_VISIBLE_DEVICES"] = none;
        CHECK_FALSE(may_see_nvidia_gpus(machine));
    }
    CHECK(machine.gpu_questions == 0);
}

TEST_CASE("memory that no living process holds is what is in use without theirs") {
    const auto lives = [](int pid) { return pid < 10; };
    CHECK(unheld_memory({100, {}}, lives) == 100U);
    CHECK(unheld_memory({100, {{1, 30}, {11, 50}, {2, 7}}}, lives) == 63U);
    CHECK(unheld_memory({100, {{1, 300}}}, lives) == 0U);
    CHECK(unheld_memory({100, {{11, std::nullopt}}}, lives) == 100U);
    CHECK_FALSE(unheld_memory({100, {{1, 30}, {2, std::nullopt}}}, lives).has_value());
    CHECK_FALSE(unheld_memory({std::nullopt, {{1, 30}}}, lives).has_value());
}

TEST_CASE("cores are counted once, however many threads they have, and not above a quota") {
    FakeSurroundings machine;
    machine.cpus = {0, 1, 2, 4, 5, 6};
    CHECK(usable_cores(machine) == 6);
    machine.texts["/sys/devices/system/cpu/smt/active"] = "1\n";
    CHECK(usable_cores(machine) == 6);
    for (int cpu = 0; cpu < 8; ++cpu) {
        const std::string siblings = std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4);
        machine.texts["/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                      "/topology/thread_siblings_list"] = siblings + "\n";
    }
    CHECK(usable_cores(machine) == 3);
    machine.texts["/sys/devices/system/cpu/smt/active"] = "0\n";
    CHECK(usable_cores(machine) == 6);

    machine.texts["/proc/self/cgroup"] = "12:cpu:/old\n0::/a/b\n";
    CHECK(usable_cores(machine) == 6);
    machine.texts["/sys/fs/cgroup/a/b/cpu.max"] = "max 100000\n";
    CHECK(usable_cores(machine) == 6);
    machine.texts["/sys/fs/cgroup/a/cpu.max"] = "350000 100000\n";
    CHECK(usable_cores(machine) == 4);
    machine.texts["/sys/fs/cgroup/cpu.max"] = "10000 100000\n";
    CHECK(usable_cores(machine) == 1);
    machine.texts["/proc/self/cgroup"] = "0::/\n";
    machine.texts["/sys/fs/cgroup/cpu.max"] = "nonsense";
    CHECK(usable_cores(machine) == 6);
}

TEST_CASE("several workers share the cores out among their OpenMP threads, and a line says so") {
    CHECK(plan_of("").agent.supervisor.omp_num_threads == 0);
    CHECK(plan_of("").notes.empty());
    const LaunchPlan plan = plan_of("--nproc-per-node 2");
    CHECK(plan.agent.supervisor.omp_num_threads == 3);
    CHECK(plan.notes == std::vector<std::string>{"OMP_NUM_THREADS=3 for each worker: 6 cores for 2 "
                                                 "workers; set it to have another"});
    CHECK(plan_of("--nproc-per-node 8").agent.supervisor.omp_num_threads == 1);
    CHECK(plan_of("--nproc-per-node 2", {{"OMP_NUM_THREADS", "7"}})
              .agent.supervisor.omp_num_threads == 0);
    CHECK(plan_of("--nproc-per-node 2", {{"OMP_NUM_THREADS", ""}}).notes.empty());
}

TEST_CASE("--virtual-local-rank gives each worker one entry of CUDA_VISIBLE_DEVICES") {
    const auto devices = [](const Variables& variables) {
        std::string text;
        for (const agent::WorkerPlacement& placement :
             plan_of("--virtual-local-rank --nproc-per-node 2", variables)
                 .agent.supervisor.placement) {
            text += (text.empty() ? "" : " | ") + placement.only_device.value_or("-");
        }
        return text;
    };
    CHECK(plan_of("--nproc-per-node 2").agent.supervisor.placement.empty());
    CHECK(devices({}) == "0 | 1");
    CHECK(devices({{"CUDA_VISIBLE_DEVICES", "5, GPU-x ,7"}}) == "5 | GPU-x");
    CHECK(refusal_of("--virtual-local-rank --nproc-per-node 2", {{"CUDA_VISIBLE_DEVICES", "5"}}) ==
          "--virtual-local-rank: CUDA_VISIBLE_DEVICES=5 has 1 entry, but 2 workers need one each; "
          "list more devices or start fewer workers");
    CHECK(plan_of("--virtual-local-rank=0 --nproc-per-node 2").agent.supervisor.placement.empty());
    CHECK(plan_of("", {{"PET_VIRTUAL_LOCAL_RANK", "1"}}).agent.supervisor.placement.size() == 1);
}

TEST_CASE("workers are placed near the GPU of their local rank, else spread over the nodes") {
    const Topology machine = machine_of(kTwoPackages);
    using Places = std::vector<int>;
    CHECK(nodes_of_places({3, 0}, 2, machine) == Places{3, 0});
    CHECK(nodes_of_places({3, 0}, 5, machine) == Places{3, 0, 3, 0, 3});
    CHECK(nodes_of_places({3, 0, 1}, 1, machine) == Places{3, 0, 1});
    CHECK(nodes_of_places({}, 4, machine) == Places{0, 1, 2, 3});
    CHECK(nodes_of_places({}, 8, machine) == Places{0, 0, 1, 1, 2, 2, 3, 3});
    CHECK(nodes_of_places({}, 2, machine) == Places{0, 2});
    CHECK(nodes_of_places({}, 3, machine) == Places{0, 1, 2});
    std::set<int> first_two_nodes;
    for (int cpu = 0; cpu < 16; ++cpu) {
        first_two_nodes.insert(cpu);
    }
    CHECK(nodes_of_places({}, 2, machine_of(kTwoPackages, first_two_nodes)) == Places{2, 3});
}

TEST_CASE("each binding mode gives its CPUs") {
    const Topology machine = machine_of(kTwoPackages);
    REQUIRE(machine.cpus.size() == 32);
    const std::vector<int> places = {0, 0, 2, 3};
    CHECK(bound(BindingMode::Node, machine, places, 4) == "0-7 | 0-7 | 16-23 | 24-31");
    CHECK(bound(BindingMode::Socket, machine, places, 4) == "0-15 | 0-15 | 16-31 | 16-31");
    CHECK(bound(BindingMode::Exclusive, machine, places, 4) == "0-3 | 4-7 | 16-23 | 24-31");
    CHECK(bound(BindingMode::CoreComplex, machine, places, 4) == "0-3 | 4-7 | 16-19 | 24-27");
    SECTION("a GPU without a worker keeps its share") {
        CHECK(bound(BindingMode::Exclusive, machine, places, 1) == "0-3");
    }
    SECTION("what does not divide goes to the first") {
        CHECK(bound(BindingMode::Exclusive, machine, {0, 0, 0}, 3) == "0-3 | 4-5 | 6-7");
        CHECK(bound(BindingMode::CoreComplex, machine, {0, 0, 0}, 3) == "0-3 | 4-7 | 0-3");
    }
    SECTION("more workers than cores cannot be exclusive") {
        CHECK(bound(BindingMode::Exclusive, machine, {0, 0, 0, 0, 0}, 5) ==
              "NUMA node 0 has 4 cores that this process may use, for 5 workers; use node, or "
              "fewer workers");
    }
}

TEST_CASE("nobody is bound to a CPU that this process may not use") {
    const Topology machine = machine_of(kTwoPackages, {0, 2, 3, 4, 16, 17, 18, 19, 20, 21, 22, 23});
    const std::vector<int> places = {0, 0};
    CHECK(bound(BindingMode::Node, machine, places, 1) == "1,5-7");
    CHECK(bound(BindingMode::Socket, machine, places, 1) == "1,5-15");
    CHECK(bound(BindingMode::Exclusive, machine, places, 2) == "1,5 | 6-7");
    CHECK(bound(BindingMode::CoreComplex, machine, places, 2) == "5-7 | 1");
    CHECK(bound(BindingMode::Node, machine, {2}, 1) ==
          "NUMA node 2, near which worker 0 is to run, has no CPU that this process may use; look "
          "at taskset -p $$ and the container's cpuset");
}

TEST_CASE("CPUs are numbered as the kernel does, which need not be by core") {
    const Topology machine = machine_of("package:1 numa:2 l3cache:1 core:2 pu:2(indexes=pu)");
    CHECK(bound(BindingMode::Exclusive, machine, {0, 0, 1, 1}, 4).find('|') != std::string::npos);
    const Topology split = machine_of("numa:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)");
    CHECK(bound(BindingMode::Node, split, {0, 1}, 2) == "0-1,4-5 | 2-3,6-7");
    CHECK(bound(BindingMode::Exclusive, split, {0, 0}, 2) == "0,4 | 1,5");
    SECTION("without any cache a node is one complex") {
        CHECK(bound(BindingMode::CoreComplex, split, {0, 0, 1}, 3) ==
              "0-1,4-5 | 0-1,4-5 | 2-3,6-7");
    }
}

TEST_CASE("--numa-binding binds, and says why it cannot") {
    FakeSurroundings machine;
    machine.machine = machine_of(kTwoPackages);
    machine.gpus = four_gpus();
    for (const Gpu& gpu : four_gpus()) {
        machine.texts["/sys/bus/pci/devices/" + gpu.pci_address + "/numa_node"] =
            gpu.uuid.starts_with("GPU-7") ? "3\n" : "-1\n";
    }
    const auto cpus = [&machine](const std::string& flags) {
        std::string text;
        const LaunchPlan plan = as_plan(make_plan(words(flags + " train.py"), machine));
        for (const agent::WorkerPlacement& placement : plan.agent.supervisor.placement) {
            text += (text.empty() ? "" : " | ") + number_ranges(placement.cpus);
        }
        return text;
    };
    CHECK(cpus("--nproc-per-node 4").empty());
    CHECK(machine.topology_questions + machine.gpu_questions == 0);
    CHECK(cpus("--nproc-per-node gpu --numa-binding node") == "0-7 | 0-7 | 24-31 | 24-31");
    CHECK(cpus("--nproc-per-node 2 --numa_binding=exclusive") == "0-3 | 4-7");
    machine.variables["CUDA_VISIBLE_DEVICES"] = "3,0";
    CHECK(cpus("--nproc-per-node gpu --numa-binding socket") == "16-31 | 0-15");
    CHECK(cpus("--nproc-per-node 4 --numa-binding node") == "24-31 | 0-7 | 24-31 | 0-7");
    machine.gpus.reset();
    CHECK(cpus("--nproc-per-node 2 --numa-binding core-complex") == "0-3 | 16-19");
    CHECK(cpus("--nproc-per-node 2 --numa-binding=").empty());
    CHECK(refusal_of("--numa-binding half") ==
          "--numa-binding half: must be node, socket, exclusive or core-complex");
    CHECK(refusal_of("--numa-binding node") ==
          "--numa-binding node: hwloc tells no CPU that this process may use");
}

TEST_CASE("the CPUs of this machine are read") {
    std::vector<int> all(4096);
    std::iota(all.begin(), all.end(), 0);
    const Result<Topology> topology = read_topology("", all);
    REQUIRE(topology.has_value());
    REQUIRE_FALSE(topology->cpus.empty());
    for (const Cpu& cpu : topology->cpus) {
        CHECK(cpu.is_allowed);
        CHECK(cpu.core <= cpu.index);
    }
    const Result<Topology> forbidden = read_topology("", {});
    REQUIRE(forbidden.has_value());
    CHECK_FALSE(forbidden->cpus.front().is_allowed);
    CHECK_FALSE(read_topology("no such machine", all).has_value());
}

TEST_CASE("lists of CPUs are written and read as the kernel does") {
    for (const std::string text : {"", "0", "0-3", "0,2-3,8", "1-2,4-5,7"}) {
        const auto cpus = parse_cpu_list(text + "\n");
        REQUIRE(cpus.has_value());
        CHECK(number_ranges(*cpus) == text);
    }
    for (const std::string text : {"x", "1-", "-1", "3-1", "1,,2", "0-99999999", "1 2"}) {
        CAPTURE(text);
        CHECK_FALSE(parse_cpu_list(text).has_value());
    }
}
