#include "tests/unit/plan_fake_surroundings.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

TEST_CASE("an endpoint is a host with or without a port") {
    struct Case {
        const char* endpoint;
        const char* host;
        int port;
    };
    const std::vector<Case> cases = {
        {"head", "head", 29400},
        {"head:1234", "head", 1234},
        {"10.0.0.1:65535", "10.0.0.1", 65535},
        {"[::1]:30", "::1", 30},
        {"[fe80::1%eth0]", "fe80::1%eth0", 29400},
        {"head.example.org:29400", "head.example.org", 29400},
    };
    for (const Case& it : cases) {
        const LaunchPlan plan =
            plan_of(std::string{"--nnodes 2 --rdzv-id j --rdzv-endpoint "} + it.endpoint);
        CHECK_FALSE(plan.is_single_node);
        CHECK(plan.endpoint_host == it.host);
        CHECK(plan.endpoint_port == it.port);
        CHECK(plan.warnings.empty());
    }
}

TEST_CASE("several endpoints are daemons of which one leads") {
    const LaunchPlan plan = plan_of("--nnodes 2 --rdzv-id j --rdzv-endpoint h1:1,h2,[::1]:30");
    CHECK_FALSE(plan.is_single_node);
    CHECK(plan.endpoint_host == "h1");
    CHECK(plan.endpoint_port == 1);
    const std::vector<rdzv::Endpoint> others = {{"h2", 29400}, {"::1", 30}};
    CHECK(plan.other_endpoints == others);
    // The refusal names the one that is wrong.
    CHECK(refusal_of("--nnodes 2 --rdzv-endpoint a,") ==
          "--rdzv-endpoint '': the host is missing; write HOST or HOST:PORT");
    CHECK(refusal_of("--nnodes 2 --rdzv-endpoint a,b/c:1") ==
          "--rdzv-endpoint b/c:1: not a host name or address: b/c; write HOST or HOST:PORT");
    CHECK(refusal_of("--nnodes 2 --rdzv-endpoint a,b:0").find("port 0") != std::string::npos);
}

TEST_CASE("nodes near each other are told by a flag, or by Slurm") {
    CHECK(plan_of("--topology rack7").identity().topology_key == "rack7");
    CHECK(plan_of("").identity().topology_key.empty());
}

TEST_CASE("a wrong endpoint is refused") {
    struct Case {
        std::string endpoint;
        std::string why;
    };
    const std::string form = "; write HOST or HOST:PORT";
    const std::string port =
        " is no port; write a number from 1 to 65535, or leave it out for "
        "29400";
    const std::vector<Case> cases = {
        {"head:65536", "'65536'" + port},
        {"head:0x10", "'0x10'" + port},
        {"head:-1", "'-1'" + port},
        {"head:+1", "'+1'" + port},
        {"head:000001", "'000001'" + port},
        {"head:", "''" + port},
        {":29400", "the host is missing" + form},
        {"[]:29400", "the host is missing" + form},
        {"[::1", "not an IPv6 endpoint; write [ADDRESS] or [ADDRESS]:PORT"},
        {"[::1]29400", "not an IPv6 endpoint; write [ADDRESS] or [ADDRESS]:PORT"},
        {"::1", "an IPv6 address needs brackets; write [::1], or [ADDRESS]:PORT"},
        {"http://head:1", "not an endpoint; write HOST or HOST:PORT, without a scheme"},
        {"head/x:1", "not a host name or address: head/x" + form},
        {"a..b:1", "not a host name or address: a..b" + form},
        {"10.0.0.256:1", "not a host name or address: 10.0.0.256" + form},
        {"10.1:1", "not a host name or address: 10.1" + form},
        {"[head]:1", "not a host name or address: head" + form},
        {"[::g]:1", "not a host name or address: ::g" + form},
        {std::string(64, 'a'), "not a host name or address: " + std::string(64, 'a') + form},
        {"head:0", "port 0 would be another one on every node; write head:29400"},
        {"[::1]:0", "port 0 would be another one on every node; write [::1]:29400"},
    };
    for (const Case& it : cases) {
        CHECK(refusal_of("--nnodes 2 --rdzv-endpoint " + it.endpoint) ==
              "--rdzv-endpoint " + it.endpoint + ": " + it.why);
    }
    for (const std::string endpoint : {"me:secret@head:29400", "me:secret@head", "me@head"}) {
        CHECK(refusal_of("--nnodes 2 --rdzv-endpoint " + endpoint) ==
              "--rdzv-endpoint: an endpoint has no user and no password" + form +
                  "; ddprun's own secret is --secret-file's");
    }
    for (const std::string host : {"he\x1b"
                                   "ad",
                                   "he\nad",
                                   "he\xff"
                                   "ad"}) {
        CHECK_THAT(as_error(outcome_of({"--rdzv-endpoint", host, "train.py"})).line,
                   Catch::Contains(": not a host name or address: he"));
    }
}

TEST_CASE("a host that may be found later is taken as it is") {
    for (const std::string host : {"head", "head.", "gpu_7.cluster.local", "10.0.0.7", "3com.net",
                                   "[fe80::1%eth0]", "[::1]"}) {
        const LaunchPlan plan = as_plan(
            outcome_of({"--nnodes", "2", "--rdzv-id", "x", "--rdzv-endpoint", host, "train.py"}));
        CHECK((host == plan.endpoint_host || host == "[" + plan.endpoint_host + "]"));
    }
}

TEST_CASE("several nodes without a place to meet are refused") {
    for (const std::string nnodes : {"2", "1:2", "2:4"}) {
        CHECK(refusal_of("--nnodes " + nnodes) ==
              "--nnodes " + nnodes +
                  ": several nodes need a place to meet; add --rdzv-endpoint HOST:29400, the same "
                  "on every node, where HOST is one of them");
    }
    CHECK_THAT(refusal_of("--nnodes 2 --rdzv-endpoint="), Catch::Contains("need a place to meet"));
}

TEST_CASE("one node is alone unless an endpoint is given") {
    CHECK(plan_of("--nnodes 1 --rdzv-backend c10d").is_single_node);
    CHECK(plan_of("--nnodes 1 --master-addr 10.0.0.1 --master-port 29500").is_single_node);
    CHECK(plan_of("--nnodes 1 --master-port 29500").master_port == 29500);
    CHECK(plan_of("--rdzv-backend c10d --rdzv-endpoint localhost:0").is_single_node);
    const LaunchPlan member = plan_of("--nnodes 1 --rdzv-endpoint head");
    CHECK_FALSE(member.is_single_node);
    CHECK(member.identity().job == JobId{});
    CHECK(member.warnings.empty());
}

TEST_CASE("--standalone is one node whatever else is said") {
    const LaunchPlan plan = plan_of("--standalone --nnodes 1:4 --rdzv-endpoint head:1");
    CHECK(plan.is_single_node);
    CHECK(plan.identity().settings.max_nodes == 1);
    CHECK(plan.warnings ==
          Arguments{"--nnodes 1:4 has no effect: --standalone is for one node",
                    "--rdzv-endpoint head:1 has no effect: with --standalone this machine stays "
                    "alone"});
    CHECK(refusal_of("--standalone --nnodes 2") ==
          "--standalone is for one node, but --nnodes 2 asks for 2; leave one out");
    CHECK(plan_of("", {{"PET_STANDALONE", "1"}, {"PET_RDZV_BACKEND", "etcd"}}).is_single_node);
}

TEST_CASE("torchrun's static way meets at the master") {
    const std::string flags = "--nnodes 2 --rdzv-id j --node-rank 1 --master-addr head ";
    const LaunchPlan plan = plan_of(flags + "--master-port 29500");
    CHECK_FALSE(plan.is_single_node);
    CHECK(plan.endpoint_host == "head");
    CHECK(plan.endpoint_port == 29500);
    CHECK(plan.agent.supervisor.is_store_at_rendezvous);
    CHECK(plan.master_port == 0);
    CHECK(plan.identity().node_rank == 1);
    CHECK(plan.warnings.empty());
    const LaunchPlan without = plan_of(flags);
    CHECK(without.endpoint_port == 29400);
    CHECK_FALSE(without.agent.supervisor.is_store_at_rendezvous);
    CHECK_FALSE(plan_of(flags + "--master-port 29500 --store agent")
                    .agent.supervisor.is_store_at_rendezvous);
    CHECK(plan_of("--nnodes 2 --rdzv-id j --master-addr ::1", {}).endpoint_host == "::1");
    CHECK(refusal_of("--nnodes 2 --master-addr head:29500") ==
          "--master-addr head:29500: is a host without a port; write --master-addr head "
          "--master-port 29500");
}

TEST_CASE("a static endpoint is the place of the workers' store, as for torchrun") {
    const std::string flags = "--rdzv-id j --rdzv-backend static --rdzv-endpoint head";
    const LaunchPlan two = plan_of("--nnodes 2 " + flags + ":5000");
    CHECK_FALSE(two.is_single_node);
    CHECK(two.endpoint_host == "head");
    CHECK(two.endpoint_port == 5000);
    CHECK(two.agent.supervisor.is_store_at_rendezvous);
    const LaunchPlan one = plan_of(flags + ":5000");
    CHECK(one.is_single_node);
    CHECK(one.agent.supervisor.store_host == "head");
    CHECK(one.master_port == 5000);
    CHECK(plan_of(flags + ":5000 --local-addr other").agent.supervisor.store_host == "other");
    CHECK(plan_of(flags + " --master-port 6000").master_port == 6000);
    SECTION("several endpoints are daemons of a site, whatever the backend is called") {
        const LaunchPlan site = plan_of(flags + ":5000,second");
        CHECK_FALSE(site.is_single_node);
        CHECK(site.endpoint_port == 5000);
        CHECK(site.other_endpoints.size() == 1);
    }
}

TEST_CASE("one node with a master's port has its store there") {
    const LaunchPlan plan = plan_of("--master-addr 10.0.0.1 --master-port 29500");
    CHECK(plan.is_single_node);
    CHECK(plan.agent.supervisor.store_host == "10.0.0.1");
    CHECK(plan.master_port == 29500);
    CHECK(plan_of("--master-addr 10.0.0.1").agent.supervisor.store_host.empty());
    CHECK(plan_of("--master-port 29500").agent.supervisor.store_host.empty());
}

TEST_CASE("an endpoint goes before the master's address and keeps its port") {
    const LaunchPlan plan = plan_of(
        "--nnodes 2 --rdzv-id j --rdzv-endpoint head:29500 --master-addr other --master-port "
        "29500");
    CHECK(plan.endpoint_host == "head");
    CHECK(plan.endpoint_port == 29500);
    CHECK(plan.master_port == 0);
    CHECK(plan.warnings == Arguments{"--master-port 29500 is the port of --rdzv-endpoint "
                                     "head:29500 too: the workers' store takes a free port"});
    CHECK(plan_of("--rdzv-endpoint head:29500 --master-port 29600").master_port == 29600);
}

TEST_CASE("the workers' store is where, and for whom, the flags say") {
    const std::string flags = "--nnodes 2 --rdzv-id j --rdzv-endpoint head:29500 ";
    CHECK_FALSE(plan_of(flags).agent.supervisor.is_store_at_rendezvous);
    CHECK_FALSE(plan_of(flags).identity().settings.store_admits_any);
    CHECK(plan_of(flags + "--store daemon").agent.supervisor.is_store_at_rendezvous);
    CHECK_FALSE(plan_of(flags + "--store=").agent.supervisor.is_store_at_rendezvous);
    CHECK(plan_of(flags + "--store-admit any").identity().settings.store_admits_any);
    CHECK_FALSE(plan_of(flags + "--store-admit members").identity().settings.store_admits_any);
    CHECK(refusal_of(flags + "--store worker").starts_with("--store worker: must be"));
    CHECK(refusal_of(flags + "--store-admit all").starts_with("--store-admit all: must be"));
    const LaunchPlan both = plan_of(flags + "--store daemon --master-port 6000");
    CHECK(both.master_port == 0);
    CHECK(both.warnings == Arguments{"--master-port 6000 has no effect: --store daemon means the "
                                     "port of the endpoint"});
    const LaunchPlan alone = plan_of("--store daemon --master-port 6000");
    CHECK_FALSE(alone.agent.supervisor.is_store_at_rendezvous);
    CHECK(alone.master_port == 6000);
    CHECK(alone.warnings ==
          Arguments{"--store daemon has no effect: a single node has no rendezvous port"});
}

TEST_CASE("a node's workers share a connection to the store where that is asked for") {
    const std::string flags = "--nnodes 2 --rdzv-id j --rdzv-endpoint head:29500 ";
    CHECK_FALSE(plan_of(flags).agent.supervisor.relays_store);
    CHECK_FALSE(plan_of(flags + "--store-relay off").agent.supervisor.relays_store);
    CHECK(plan_of(flags + "--store-relay on").agent.supervisor.relays_store);
    CHECK(plan_of(flags + "--store daemon --store-relay on").agent.supervisor.relays_store);
    CHECK(refusal_of(flags + "--store-relay auto").starts_with("--store-relay auto: must be"));
    const LaunchPlan alone = plan_of("--store-relay on");
    CHECK_FALSE(alone.agent.supervisor.relays_store);
    CHECK(alone.warnings ==
          Arguments{"--store-relay on has no effect: a single node's store is its own"});
}

TEST_CASE("rank 0 serves the workers' store where torchrun would have it do so") {
    const Variables asked = {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}};
    const std::string two = "--nnodes 2 --rdzv-id j ";
    const std::string at_head = two + "--rdzv-endpoint head ";
    for (const std::string& flags :
         {std::string(), std::string("--standalone --master-port 6000"),
          std::string("--rdzv-backend static"), at_head, at_head + "--rdzv-backend c10d"}) {
        INFO(flags);
        CHECK(plan_of(flags, asked).agent.supervisor.is_store_of_rank_0);
        CHECK(plan_of(flags, asked).warnings.empty());
        CHECK_FALSE(plan_of(flags).agent.supervisor.is_store_of_rank_0);
        CHECK_FALSE(plan_of(flags, {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0"}})
                        .agent.supervisor.is_store_of_rank_0);
    }
    const std::string without = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 has no effect: ";
    for (const std::string& flags :
         {std::string("--master-port 6000"), two + "--master-addr head --master-port 6000",
          at_head + "--rdzv-backend static"}) {
        INFO(flags);
        CHECK_FALSE(plan_of(flags, asked).agent.supervisor.is_store_of_rank_0);
        CHECK(plan_of(flags, asked).warnings ==
              Arguments{without + "static nodes share the launcher's store, under torchrun too; "
                                  "give --rdzv-backend c10d and --rdzv-endpoint"});
    }
    const LaunchPlan told = plan_of(at_head + "--store daemon", asked);
    CHECK_FALSE(told.agent.supervisor.is_store_of_rank_0);
    CHECK(told.agent.supervisor.is_store_at_rendezvous);
    CHECK(told.warnings ==
          Arguments{without + "--store daemon says who serves the workers' store"});
    const LaunchPlan relays = plan_of(at_head + "--store-relay on", asked);
    CHECK(relays.agent.supervisor.is_store_of_rank_0);
    CHECK_FALSE(relays.agent.supervisor.relays_store);
    CHECK(relays.warnings ==
          Arguments{"--store-relay on has no effect: with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "
                    "rank 0 serves the workers' store"});
}

TEST_CASE("ports outside of their range are refused") {
    for (const std::string port : {"65536", "-1", "x", "29500x"}) {
        CHECK(refusal_of("--master-port " + port) ==
              "--master-port " + port + ": must be a whole number from 0 to 65535");
    }
}

TEST_CASE("several nodes without a name share torchrun's, with a warning") {
    const LaunchPlan unnamed = plan_of("--nnodes 2 --rdzv-endpoint head");
    CHECK(unnamed.identity().job == JobId{"none"});
    CHECK(unnamed.warnings ==
          Arguments{"no --rdzv-id: the job is called none; two jobs at one endpoint need "
                    "different names"});
    CHECK(plan_of("--nnodes 2 --rdzv-endpoint head --rdzv-id none").warnings.empty());
    CHECK(plan_of("--rdzv-id mine").identity().job == JobId{"mine"});
    CHECK(plan_of("--standalone --rdzv-id mine").identity().job == JobId{"mine"});
}

TEST_CASE("names that cannot be part of a file name are refused") {
    const std::string form =
        ": becomes part of file names; use letters, digits, '-', '_', '.', "
        "and no leading '.'";
    for (const std::string name : {"a/b", "..", ".x", "a b", "a\tb", "a\xff", "\xc3"}) {
        CAPTURE(name);
        for (const std::string flag : {"--rdzv-id", "--node-id", "--role"}) {
            const UsageError error = as_error(outcome_of({flag, name, "train.py"}));
            CHECK_THAT(error.line, Catch::EndsWith(form));
        }
    }
    CHECK(plan_of("--rdzv-id " + std::string(246, 'x')).identity().job.value().size() == 246);
    CHECK_THAT(refusal_of("--rdzv-id " + std::string(247, 'x')),
               Catch::EndsWith(": has 247 bytes; at most 246 are allowed"));
    CHECK(refusal_of("--rdzv-id=") == "--rdzv-id '': is empty; give a name, or leave the flag out");
    CHECK(plan_of("--rdzv-id job-ä.1:2 --role trainer").identity().role == "trainer");
}

TEST_CASE("the node's rank lies below the number of nodes") {
    CHECK(plan_of("--node-rank 0").identity().node_rank == 0);
    CHECK(
        plan_of("--nnodes 1:4 --rdzv-id j --rdzv-endpoint h --node-rank 3").identity().node_rank ==
        3);
    CHECK(refusal_of("--node-rank 1") ==
          "--node-rank 1: must be a whole number from 0 to 0: --nnodes allows 1 node");
    CHECK(refusal_of("--nnodes 2 --rdzv-endpoint h --node-rank 2") ==
          "--node-rank 2: must be a whole number from 0 to 1: --nnodes allows 2 nodes");
    CHECK_THAT(refusal_of("--node-rank x"), Catch::StartsWith("--node-rank x: must be"));
}

TEST_CASE("who this node is can be told") {
    const LaunchPlan plan = plan_of("--node-id gpu-7 --local-addr fe80::1");
    CHECK(plan.identity().node == NodeId("gpu-7"));
    CHECK(plan.agent.supervisor.store_host == "fe80::1");
    CHECK(as_error(outcome_of({"--local-addr", "a b", "train.py"})).line ==
          "--local-addr a b: not a host name or address of this machine");
    for (const std::string address : {"a\nb", "a\x1b", "a\xff"}) {
        CHECK_THAT(as_error(outcome_of({"--local-addr", address, "train.py"})).line,
                   Catch::EndsWith(": not a host name or address of this machine"));
    }
}

TEST_CASE("backends other than ours are refused") {
    CHECK(plan_of("--nnodes 2 --rdzv-id j --rdzv-backend static --rdzv-endpoint h")
              .identity()

              .slots == 1);
    for (const std::string backend : {"etcd", "etcd-v2"}) {
        CHECK(refusal_of("--rdzv-backend " + backend) ==
              "--rdzv-backend " + backend +
                  ": ddprun brings its own rendezvous and needs no etcd; leave the flag out, and "
                  "give --rdzv-endpoint HOST:29400 with one of the nodes as HOST");
    }
    CHECK(refusal_of("--rdzv-backend mine") ==
          "--rdzv-backend mine: must be c10d or static, which both mean ddprun's own rendezvous");
}

TEST_CASE("the secret's file is checked where a secret is needed") {
    FakeSurroundings machine;
    machine.files.insert("/etc/secret");
    machine.files.insert("/etc/other");
    const auto secret = [&machine](const std::string& flags) {
        return as_plan(make_plan(words("--rdzv-endpoint head " + flags + " train.py"), machine))
            .secret_file;
    };
    CHECK(secret("").empty());
    CHECK(secret("--secret-file /etc/secret") == "/etc/secret");
    machine.variables["DDPRUN_SECRET_FILE"] = "/etc/other";
    CHECK(secret("") == "/etc/other");
    CHECK(secret("--secret-file /etc/secret") == "/etc/secret");
    CHECK(secret("--insecure").empty());
    CHECK(refusal_of("--rdzv-endpoint head --secret-file /nope") ==
          "--secret-file /nope: no such file; copy the secret of another node there, or leave this "
          "out for ~/.config/ddprun/secret");
    CHECK(refusal_of("--rdzv-endpoint head", {{"DDPRUN_SECRET_FILE", "/nope"}})
              .starts_with("DDPRUN_SECRET_FILE=/nope: no such file; "));
    CHECK(refusal_of("--insecure --secret-file /etc/secret") ==
          "--secret-file /etc/secret: contradicts --insecure; leave one out");
    CHECK(plan_of("--secret-file /nope").is_single_node);
}

TEST_CASE("more workers than the store serves are refused, and a relay is named") {
    const std::string at = " --rdzv-id j --rdzv-endpoint head";
    const std::string many = "--nnodes 10000 --nproc-per-node 8" + at;
    CHECK(refusal_of(many) ==
          "--nnodes 10000 with --nproc-per-node 8: 80000 workers are more than the 65536 that the "
          "workers' store serves directly; add --store-relay on, on every node: then a node's "
          "workers share one connection");
    CHECK(plan_of(many + " --store-relay on").agent.supervisor.relays_store);
    CHECK(plan_of("--nnodes 8192 --nproc-per-node 8" + at).identity().slots == 8);
    CHECK(refusal_of("--nnodes 16384 --nproc-per-node 65 --store-relay on" + at)
              .find("behind relays; start fewer") != std::string::npos);
    CHECK(refusal_of("--nnodes 8193:9000 --nproc-per-node 8" + at).find("65544") !=
          std::string::npos);
    CHECK(plan_of(many, {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}})
              .agent.supervisor.is_store_of_rank_0);
}

TEST_CASE("a job that may grow beyond what the store serves is warned") {
    const std::string at = " --nproc-per-node 8 --rdzv-id j --rdzv-endpoint head";
    CHECK(plan_of("--nnodes 1:10000" + at).warnings ==
          Arguments{"--nnodes 1:10000 with --nproc-per-node 8: up to 80000 workers, and the "
                    "workers' store serves 65536 directly; for more add --store-relay on, on every "
                    "node"});
    CHECK(plan_of("--nnodes 1:8192" + at).warnings.empty());
    CHECK(plan_of("--nnodes 1:10000 --store-relay on" + at).warnings.empty());
    CHECK(plan_of("--nnodes 1:10000" + at, {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}})
              .warnings.empty());
}
