// What runs have written and commands read again, and requests.
#include <string>
#include <string_view>
#include <vector>

#include "target.hpp"

import tessera.base;
import tessera.app.base;
import tessera.app.config;
import tessera.hub;
import tessera.text;
import tessera.app.server;
import tessera.app.trace;
import tessera.runs;

using namespace tessera;

namespace {

const fuzz::Target trace{"trace", [](std::string_view input) {
                           const std::string file = fuzz::file_of(input, "trace.json");
                           const app::TraceData data = app::read_trace(file);
                           static_cast<void>(app::trace_summary(data));
                           static_cast<void>(app::draw_trace(data));
                           try {
                             static_cast<void>(app::stage_times(data, file));
                           } catch (const Error& error) {  // most models have no stages
                             fuzz::expect(error.kind() == ErrorKind::input,
                                          "trace: another error than of an input");
                           }
                         }};

const fuzz::Target black_box{
    "black_box", [](std::string_view input) {
      const std::vector<std::string> files = {fuzz::file_of(input, "box.json")};
      static_cast<void>(app::black_box_text(files));
    }};

const fuzz::Target metrics{"metrics", [](std::string_view input) {
                             for (const runs::StepMetrics& one :
                                  runs::read_metrics(fuzz::file_of(input, "metrics.jsonl"))) {
                               static_cast<void>(runs::to_json(one));
                               static_cast<void>(runs::scalars_of(one));
                             }
                           }};

const fuzz::Target chat_request{
    "chat_request", [](std::string_view input) {
      const app::ChatRequest request = app::parse_chat_request(input, {}, 1000);
      fuzz::expect(request.options.tokens <= text::GenerationOptions().tokens,
                   "chat request: more tokens than are allowed");
    }};

const fuzz::Target questions{
    "questions", [](std::string_view input) {
      static_cast<void>(text::read_questions(fuzz::file_of(input, "questions.jsonl")));
    }};

/// What a checkpoint of a run says of its model.
const fuzz::Target model_meta{"model_meta", [](std::string_view input) {
                                static_cast<void>(hub::stored_model(input, "checkpoint").text());
                              }};

}  // namespace
