//! The store's threads, and the face that callers see.
