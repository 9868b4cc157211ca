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

/// What a scheduler tells of nodes, rank and endpoint, unless a flag or PET_* says anything of
/// them.
[[nodiscard]] Result<void> take_place(const CommandLine& line, const Surroundings& surroundings,
                                      LaunchPlan& plan);

/// Flags of torchrun that choose nothing here; refuses values that ask for what there is not.
[[nodiscard]] Result<void> take_without_effect(const CommandLine& line,
                                               const Surroundings& surroundings, LaunchPlan& plan);

/// --rdzv-conf: fills what its keys mean, and makes those that mean a flag's the default of that.
[[nodiscard]] Result<void> take_rdzv_conf(CommandLine& line, LaunchPlan& plan);

/// Number of nodes.
[[nodiscard]] Result<void> take_nodes(const CommandLine& line, const Surroundings& surroundings,
                                      LaunchPlan& plan);

/// When this node has to be gone; after take_nodes().
[[nodiscard]] Result<void> take_leaving(const CommandLine& line, const Surroundings& surroundings,
                                        LaunchPlan& plan);

/// Where nodes meet and who this one is.
[[nodiscard]] Result<void> take_meeting(const CommandLine& line, const Surroundings& surroundings,
                                        LaunchPlan& plan);

/// Certificates of the way to the rendezvous; after take_meeting().
[[nodiscard]] Result<void> take_tls(const CommandLine& line, const Surroundings& surroundings,
                                    LaunchPlan& plan);

/// Which network interface workers are told to use.
[[nodiscard]] Result<void> take_interface(const CommandLine& line, const Surroundings& surroundings,
                                          LaunchPlan& plan);

/// Workers of this node.
[[nodiscard]] Result<void> take_slots(const CommandLine& line, const Surroundings& surroundings,
                                      LaunchPlan& plan);

/// Workers of this node where a scheduler tells its GPUs; what was found, and what is wrong with
/// it.
[[nodiscard]] Result<void> take_place_slots(const CommandLine& line,
                                            const Surroundings& surroundings, LaunchPlan& plan);

/// Each worker has a connection to the workers' store. Beyond its limit the last ones would never
/// finish init_process_group(): a job that cannot be smaller is refused, one that can grow there is
/// warned. Of nodes that start another number of workers nothing is known here, and nothing of the
/// limit of a store that rank 0 serves.
[[nodiscard]] Result<void> check_store_room(const CommandLine& line,
                                            const Surroundings& surroundings, LaunchPlan& plan);

/// What each worker of this node has of it: device, CPUs, threads.
[[nodiscard]] Result<void> take_placement(const CommandLine& line, const Surroundings& surroundings,
                                          LaunchPlan& plan);

/// Log folder and console.
[[nodiscard]] Result<void> take_output(const CommandLine& line, const Surroundings& surroundings,
                                       LaunchPlan& plan);

/// Who has ddprun's terminal; after take_output().
[[nodiscard]] Result<void> take_debugging(const CommandLine& line, const Surroundings& surroundings,
                                          LaunchPlan& plan);

/// Variables in which workers find the number of the run.
[[nodiscard]] Result<void> take_env_per_run(const CommandLine& line,
                                            const Surroundings& surroundings, LaunchPlan& plan);

/// What a worker executes.
[[nodiscard]] Result<void> take_program(const CommandLine& line, const Surroundings& surroundings,
                                        LaunchPlan& plan);

/// What standbys import, or wait with; after take_program().
[[nodiscard]] Result<void> take_warm(const CommandLine& line, const Surroundings& surroundings,
                                     LaunchPlan& plan);

}  // namespace ddprun::launcher
