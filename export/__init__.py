"""Export of Keras models to SavedModel, TFLite and ONNX, with the artifact run and compared.

Import the module of the format, `keras_attention.export.saved_model`, `.tflite`, `.onnx`, or
`.parity` and `.inspect`. Nothing is imported here, because each of them loads TensorFlow.
"""
