// dpo_lora: preference training of a model from a folder of transformers, with low-rank updates,
// on a 2 x 2 mesh. It is the run that a config would describe: it heals, checkpoints, continues and
// shows its progress. docs/whole-runs.md explains it.
//
//   dpo_lora MODEL_FOLDER PREFERENCES.jsonl OUTPUT_FOLDER [STEPS]
#include <cstdio>
#include <string>

import tessera;

using namespace tessera;

int main(int count, char** words) {
  if (count < 4) {
    std::fprintf(stderr, "dpo_lora MODEL_FOLDER PREFERENCES.jsonl OUTPUT_FOLDER [STEPS]\n");
    return 2;
  }
  const std::string output = words[3];
  const std::string layers = "model.layers.*.";
  runs::RunSpec spec;
  spec.model.from = words[1];
  spec.data.jsonl = {words[2]};  // records of prompt, chosen and rejected
  spec.data.seq_len = 128;
  spec.data.validation = 0;
  spec.train.objective = runs::ObjectiveKind::dpo;
  spec.train.steps = count > 4 ? std::stoll(words[4]) : 20;
  spec.train.batch = 4;
  spec.train.heal = true;
  spec.optimizer.lr = 1e-3;
  spec.mesh.axes = {"shard", "tensor"};
  spec.mesh.shape = {2, 2};
  spec.parallel = {{.style = "LoRA",
                    .on = {layers + "{self_attn,mlp}.*_proj"},
                    .options = {R"({"rank": 8, "alpha": 16})"}},
                   {.style = "ColwiseParallel",
                    .axis = {{"tensor"}},
                    .on = {layers + "self_attn.{q,k,v}_proj", layers + "mlp.{gate,up}_proj"}},
                   {.style = "RowwiseParallel",
                    .axis = {{"tensor"}},
                    .on = {layers + "self_attn.o_proj", layers + "mlp.down_proj"}},
                   {.style = "FSDP", .axis = {{"shard"}}, .on = {"model.layers.*", "."}}};
  spec.checkpoint.folder = output + "/checkpoints";
  spec.log.metrics = output + "/metrics.jsonl";
  return runs::train(spec);
}
