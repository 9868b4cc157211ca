#pragma once

#include <optional>
#include <string_view>
#include <vector>

/// Mistakes that the simulator must find. DDP_RULE(rule, bug, broken) plants one: the expression is
/// `rule`, and `broken` in the simulator while that bug is switched on. Only one of both is
/// evaluated. The simulator has its own build of the cores, in which one bug at a time can be
/// switched on; every other build compiles `rule` alone. An operand that does nothing is void():
///
///     if (DDP_RULE(stopping.pending.empty(), StartWithoutProof, true)) {
///     DDP_RULE(renew_lease(step, *node), LeaseNotRenewed, void());
///
/// A condition that `broken` repeats is a named constant above the expression.
///
/// X(enumerator, "name", "the mistake, and who is known to make it")
#define DDP_PLANTED_BUGS(X)                                                                      \
    X(SilentDeathIgnored, "silent-death-ignored",                                                \
      "a lease that ends is not judged: a node without power is never missed (torchrun)")        \
    X(EndOfStreamIgnored, "end-of-stream-ignored",                                               \
      "the end of a member's connection is only a suspicion: its death is noticed a lease late") \
    X(ResetTakenForDeath, "reset-taken-for-death",                                               \
      "a connection that was reset counts as the end of its agent")                              \
    X(ClosedByOneExit, "closed-by-one-exit",                                                     \
      "the run is closed when one agent leaves (torchrun: a rendezvous closed by any agent)")    \
    X(StaleReportAccepted, "stale-report-accepted",                                              \
      "a report of an older generation counts for the current one")                              \
    X(SurplusRefused, "surplus-refused",                                                         \
      "a node beyond the maximum is an error instead of a spare (torchrun)")                     \
    X(BudgetEscapedByRejoin, "budget-escaped-by-rejoin",                                         \
      "a failure is forgotten when its node joins anew before the stop is over")                 \
    X(DoubleCharge, "double-charge",                                                             \
      "one death is charged as a lost node and as a worker failure")                             \
    X(ChargePerFailure, "charge-per-failure",                                                    \
      "each report of one stop is charged (torchrun counts on every node)")                      \
    X(LossNotCharged, "loss-not-charged", "lost nodes are not charged to --max-node-losses")     \
    X(LeaseNotRenewed, "lease-not-renewed",                                                      \
      "a lease is counted from the join: beats do not renew it")                                 \
    X(SurvivorMoved, "survivor-moved",                                                           \
      "a newcomer is sorted in before survivors: ranks move that need not (torchrun)")           \
    X(LeaverForgotten, "leaver-forgotten",                                                       \
      "lost wake-up: a node that left with a drain is never released")                           \
    X(LeaveForgottenOnReconnect, "leave-forgotten-on-reconnect",                                 \
      "an agent that was told to leave does not say so again after a reconnect")                 \
    X(GenerationReused, "generation-reused",                                                     \
      "a number is used twice after the daemon was restarted")                                   \
    X(StartWithoutProof, "start-without-proof",                                                  \
      "the next generation starts when the first member is empty, not the last")                 \
    X(EmptyBeforeProof, "empty-before-proof",                                                    \
      "an agent says Stopped when its workers were killed, without proof that they are gone")    \
    X(StopNotRepeated, "stop-not-repeated",                                                      \
      "a member that reconnects while its generation stops is not told so again")                \
    X(StartNotRepeated, "start-not-repeated",                                                    \
      "a Start that was lost with its connection is not sent again")                             \
    X(SuccessOnFirstExit, "success-on-first-exit",                                               \
      "the run succeeds when the first node has finished")                                       \
    X(LeftCountsAsFinished, "left-counts-as-finished",                                           \
      "exit 0 after a stop request counts as finished")                                          \
    X(HeldUpIgnored, "held-up-ignored",                                                          \
      "a daemon that was held up judges all leases when it wakes")                               \
    X(NoSelfDoubt, "no-self-doubt", "half of the nodes silent at once: all are declared dead")   \
    X(HoldIgnored, "hold-ignored", "a generation starts although an operator holds the job")     \
    X(HoldForgottenByDaemon, "hold-forgotten-by-daemon",                                         \
      "a restarted daemon does not know that an operator holds the job")                         \
    X(TargetIgnored, "target-ignored", "a generation has more nodes than an operator wants")     \
    X(OrderTakenForFailure, "order-taken-for-failure", "what an operator stops is a failure")    \
    X(OrderUnheard, "order-unheard", "a node that is drained by order is not let go")            \
    X(IsolationMissing, "isolation-missing",                                                     \
      "a node that is cut off lets its workers publish for ever")                                \
    X(IsolationLate, "isolation-late",                                                           \
      "a node that is cut off trusts its lease for longer than it can be sure of it")            \
    X(FenceMissing, "fence-missing",                                                             \
      "a node that comes back with workers of an older generation is taken as empty")            \
    X(RestoredRunRestarts, "restored-run-restarts",                                              \
      "a restarted daemon stops the workers that it finds")                                      \
    X(RestoredRunForgetsBudgets, "restored-run-forgets-budgets",                                 \
      "a restarted daemon starts with fresh budgets")                                            \
    X(AdoptsLowerGeneration, "adopts-lower-generation",                                          \
      "a daemon without journal adopts the first generation it hears of, not the newest")        \
    X(ToldBeforeDurable, "told-before-durable", "a start is told before it is in the journal")   \
    X(SpareStarted, "spare-started", "a spare is started beyond the maximum")                    \
    X(SizesIgnored, "sizes-ignored",                                                             \
      "a generation has as many nodes as are here, not a size that --nnodes lists")              \
    X(LargerSizeMissed, "larger-size-missed",                                                    \
      "a generation has the smallest size, although a larger one would fit")                     \
    X(GrowthWithoutSize, "growth-without-size",                                                  \
      "a newcomer stops the workers although it completes no larger size")                       \
    X(UnlikeTaken, "unlike-taken",                                                               \
      "with --same strict a node that runs another program is taken in")                         \
    X(DifferenceUnsaid, "difference-unsaid",                                                     \
      "nodes run different programs, and nobody is told (torchrun)")                             \
    X(PartnerOnSameRack, "partner-on-same-rack",                                                 \
      "the memory partner is the next node, on the same rack although another has room")         \
    X(GrowthKills, "growth-kills", "growing stops the workers without the time to save")         \
    X(QuarantineIgnored, "quarantine-ignored",                                                   \
      "a node that keeps failing is chosen although others suffice")                             \
    X(UnfitTakenAgain, "unfit-taken-again",                                                      \
      "a node that failed its own check is taken again as soon as it is back")                   \
    X(UnfitStrangerForgotten, "unfit-stranger-forgotten",                                        \
      "a node that failed its check before it joined is taken as soon as it is back")            \
    X(UnfitStrangerBelieved, "unfit-stranger-believed",                                          \
      "a member is lost when a ddprun that failed its check has its name")                       \
    X(BackoffMissing, "backoff-missing", "restarts follow each other without a pause")           \
    X(VerdictNotRepeated, "verdict-not-repeated",                                                \
      "a member that reconnects after the verdict is not told")                                  \
    X(FirstFailureByArrival, "first-failure-by-arrival",                                         \
      "the failure that was reported first is called the first (torchrun, nearly)")              \
    X(SilentWait, "silent-wait", "nodes that wait are not told for what")                        \
    X(FinishedNodeMissed, "finished-node-missed",                                                \
      "a node that goes after all its ranks have finished restarts the others")                  \
    X(PatienceRestarted, "patience-restarted",                                                   \
      "each join starts the patience anew: a trickle of joins delays the start for ever")        \
    X(DrainDeadlineIgnored, "drain-deadline-ignored",                                            \
      "workers that ignore the request to leave are never killed")                               \
    X(HangOfOneNode, "hang-of-one-node",                                                         \
      "a generation hangs when the workers of one node show no sign of life")                    \
    X(GpuUseIgnored, "gpu-use-ignored",                                                          \
      "workers whose only sign of life is the use of their GPU are taken for hanging")           \
    X(QuietForgottenOnReconnect, "quiet-forgotten-on-reconnect",                                 \
      "an agent does not say again after a reconnect that its workers are quiet")                \
    X(DyingForgottenOnReconnect, "dying-forgotten-on-reconnect",                                 \
      "an agent does not say again after a reconnect that a worker is on its way out")           \
    X(SuspectNotAwaited, "suspect-not-awaited",                                                  \
      "a survivor that is cut off for a moment loses its place to a spare")                      \
    X(LeaderOutlivesLease, "leader-outlives-lease",                                              \
      "a leader decides until etcd tells it that another one leads, not until its lease ends")   \
    X(LeaseFromAnswer, "lease-from-answer",                                                      \
      "a leader counts its lease from etcd's answer instead of from its own question")           \
    X(UnguardedWrite, "unguarded-write",                                                         \
      "what a leader writes to etcd does not depend on its term")                                \
    X(TimerNotSetAnew, "timer-not-set-anew",                                                     \
      "a timer whose deadline moved away fires and is not set again")                            \
    X(HoldUpUnnoticed, "hold-up-unnoticed",                                                      \
      "a timer that is long due is not taken for a hold-up of this process")                     \
    X(JudgedUnheard, "judged-unheard",                                                           \
      "a daemon judges deadlines before it reads what its nodes have sent")                      \
    X(ToldBeforeWritten, "told-before-written",                                                  \
      "what follows an awaited record is told before the journal has it")                        \
    X(RefusedRecordAwaited, "refused-record-awaited",                                            \
      "a leader waits for ever for a record that etcd refuses while it prolongs the lease")      \
    X(FailedRecordForgotten, "failed-record-forgotten",                                          \
      "a record that could not be written is not tried again")                                   \
    X(SilentAskedForEver, "silent-asked-for-ever",                                               \
      "of several daemons the one that fell silent is asked again, never others")                \
    X(FollowerAwaitedForEver, "follower-awaited-for-ever",                                       \
      "a daemon that knows no leader is waited at for ever")                                     \
    X(LateStandbyAwaited, "late-standby-awaited",                                                \
      "a standby that hangs in its imports is waited for, and so are all others")                \
    X(DeadStandbyTaken, "dead-standby-taken", "a worker starts from a standby that has died")    \
    X(EndingStandbyForgotten, "ending-standby-forgotten",                                        \
      "the next standby is prepared beside one that is being killed")

namespace ddprun {

enum class PlantedBug {
    None,
#define DDP_PLANTED_BUG_ENUMERATOR(bug, name, what) bug,
    DDP_PLANTED_BUGS(DDP_PLANTED_BUG_ENUMERATOR)
#undef DDP_PLANTED_BUG_ENUMERATOR
};

struct PlantedBugInfo {
    PlantedBug bug = PlantedBug::None;
    std::string_view name;
    std::string_view what;
};

[[nodiscard]] const std::vector<PlantedBugInfo>& planted_bugs();

/// Returns nothing if no bug has that name.
[[nodiscard]] std::optional<PlantedBug> planted_bug_named(std::string_view name);

}  // namespace ddprun

#ifdef DDPRUN_WITH_PLANTED_BUGS
namespace ddprun {
/// The one that is switched on. Only tests/sim sets it, before anything runs.
inline PlantedBug planted_bug = PlantedBug::None;
}  // namespace ddprun
#define DDP_RULE(rule, bug, broken) \
    (::ddprun::planted_bug == ::ddprun::PlantedBug::bug ? (broken) : (rule))
#else
#define DDP_RULE(rule, bug, broken) (rule)
#endif
