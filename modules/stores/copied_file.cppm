module tessera.stores:copied_file;

import tessera.base;
import :opened;
import :store;

namespace tessera::stores {

/// Fetches an object into the file `place`, which gets its name when it is complete and right.
/// `partial`: a path for what is fetched and not complete, of which a later call goes on.
/// Errors: those of OpenStore::read; wrong_answer: twice, the bytes had another hash; no_space.
void copy_object(OpenStore& store, const ListedObject& object, const std::string& place,
                 const std::string& partial);

}  // namespace tessera::stores
