//! Files with bytes that are not right, before they are opened and after; readers beside a writer.
