module tessera.app.server:chat_page;

import tessera.app.base;
import :http_message;

namespace tessera::app {

/// A page in a browser to talk with the model and see its probabilities. It may run its own script,
/// which is told by a number that is drawn for each answer, and talk with this server; nothing
/// else.
HttpAnswer chat_page();

}  // namespace tessera::app
