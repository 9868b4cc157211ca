#pragma once

#include "base/result.hpp"
#include "launcher/plan/flags.hpp"
#include "launcher/plan/launch_plan.hpp"
#include "launcher/surroundings/surroundings.hpp"

/// The steps of make_plan() for flags that mean something only together with others, in the order
/// in which it takes them. Each reads its flags, fills its part of the plan and fails with a line
/// for the user. The flags whose rows fill the plan themselves, and what a step before it wrote, a
/// step may read.
namespace ddprun::launcher {

using Step = Result<void>(const CommandLine& line, const Surroundings& surroundings,
                          LaunchPlan& plan);

/// Takes nodes, rank and endpoint from a scheduler's variables, unless a flag or PET_* says
/// anything of them.
Step take_place;

/// Flags of torchrun that choose nothing here; refuses values that ask for what there is not.
Step take_without_effect;

/// --rdzv-conf: fills what its keys mean, and makes those that mean a flag's the default of that.
[[nodiscard]] Result<void> take_rdzv_conf(CommandLine& line, LaunchPlan& plan);

/// Number of nodes.
Step take_nodes;

/// When this node has to be gone; after take_nodes().
Step take_leaving;

/// The place where nodes meet, and the identity of this node.
Step take_meeting;

/// Certificates of the way to the rendezvous; after take_meeting().
Step take_tls;

/// Which network interface workers are told to use.
Step take_interface;

/// Workers of this node.
Step take_slots;

/// Workers of this node if a scheduler gives its GPUs; what was found, and what is wrong with
/// it.
Step take_place_slots;

/// Each worker has a connection to the workers' store. Beyond its limit the last ones would never
/// finish init_process_group(): a job that cannot be smaller is refused, one that can grow there is
/// warned. Nodes that start another number of workers are not known here, and neither is the limit
/// of a store that rank 0 serves.
Step check_store_room;

/// The share that each worker has of this node: device, CPUs, threads.
Step take_placement;

/// Log folder and console.
Step take_output;

/// The rank that has ddprun's terminal; after take_output().
Step take_debugging;

/// Variables in which workers find the number of the run.
Step take_env_per_run;

/// The command that a worker executes.
Step take_program;

/// The modules that standbys import, or wait with; after take_program().
Step take_warm;

/// Checkpoints in memory and their copies; after take_nodes().
Step take_memory;

}  // namespace ddprun::launcher
