export module tessera.pipeline:check;

import tessera.base;
import :schedule;

export namespace tessera::pipeline {

/// Proves that ranks can run a schedule: every stage is on a rank and every rank has one; each
/// micro-batch goes once through the forward and the backward of each stage, on its rank; each
/// transfer between ranks is there once on both sides, in one order on both; nothing waits for
/// itself; gradients of a stage are summed in the order of the micro-batches, so that the sums have
/// the bits that they have without a pipeline; no rank keeps more than most_kept. Errors (input)
/// name rank and action; of ranks that wait for each other all are named. `where`: for errors.
void check(const Schedule& schedule, const std::string& where);

/// For how many pairs of stage and micro-batch each rank keeps activations at a time at most.
std::vector<int> most_kept(const Schedule& schedule);

}  // namespace tessera::pipeline
