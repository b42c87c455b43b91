"""Request bodies as pydantic models: types, names and the OpenAPI document. No behaviour."""
