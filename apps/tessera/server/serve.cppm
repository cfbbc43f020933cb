export module tessera.app.server:serve;

import tessera.app.base;
import tessera.text;
import :http_message;
import :served_adapters;
import :embeddings;

export namespace tessera::app {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                        // 0: any that is free
  std::string token = {};                 // that clients send as "Authorization: Bearer TOKEN"
  std::string chat_template = {};         // a file; empty: the tokenizer's
  text::GenerationOptions defaults = {};  // of requests; its tokens are the most of an answer
  std::int64_t seconds = 300;             // an answer ends then
  std::int64_t waiting = 128;             // requests that wait for the model; more are refused
  text::EngineOptions engine = {};        // how many are answered together, in which memory
  /// Of embeddings; none: as the folder of the model says, or else by its kind.
  std::optional<EmbeddingPooling> pooling = std::nullopt;
  AdapterOptions adapters = {};  // that requests choose by their names
  bool page = false;             // answers / with a page to talk with the model
  HttpLimits limits = {};        // of what clients send
};

/// Answers requests for texts over HTTP until the process receives SIGINT or SIGTERM. `started`
/// receives the port. Errors (input): those of ServedAdapters; a chat
/// template that is not supported; an address of other machines without a token; those of
/// HttpServer.
void serve(const text::TextModel& model, const ServeOptions& options,
           const std::function<void(int port)>& started);

/// Whether a folder has an encoder of texts, of which serve_encoder() answers with vectors.
bool is_encoder(const std::string& folder);
/// Answers requests for embeddings by the encoder of a folder of transformers; otherwise as
/// serve().
void serve_encoder(const std::string& folder, const ServeOptions& options,
                   const std::function<void(int port)>& started);

}  // namespace tessera::app
